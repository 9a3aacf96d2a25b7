"""What people call the languages of models: names in English, by ISO 639 code."""

from __future__ import annotations

from collections.abc import Iterable

NAMES = {
    "af": "Afrikaans", "am": "Amharic", "ar": "Arabic", "az": "Azerbaijani", "be": "Belarusian", "bg": "Bulgarian",
    "bn": "Bengali", "bs": "Bosnian", "ca": "Catalan", "cs": "Czech", "cy": "Welsh", "da": "Danish", "de": "German",
    "el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish", "et": "Estonian", "eu": "Basque", "fa": "Persian",
    "fi": "Finnish", "fr": "French", "ga": "Irish", "gl": "Galician", "gu": "Gujarati", "ha": "Hausa", "he": "Hebrew",
    "hi": "Hindi", "hr": "Croatian", "ht": "Haitian Creole", "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian",
    "ig": "Igbo", "is": "Icelandic", "it": "Italian", "ja": "Japanese", "jv": "Javanese", "ka": "Georgian", "kk": "Kazakh",
    "km": "Khmer", "kn": "Kannada", "ko": "Korean", "ku": "Kurdish", "ky": "Kyrgyz", "la": "Latin", "lb": "Luxembourgish",
    "lo": "Lao", "lt": "Lithuanian", "lv": "Latvian", "mg": "Malagasy", "mk": "Macedonian", "ml": "Malayalam",
    "mn": "Mongolian", "mr": "Marathi", "ms": "Malay", "mt": "Maltese", "my": "Burmese", "nb": "Norwegian Bokmål",
    "ne": "Nepali", "nl": "Dutch", "nn": "Norwegian Nynorsk", "no": "Norwegian", "oc": "Occitan", "pa": "Punjabi",
    "pl": "Polish", "ps": "Pashto", "pt": "Portuguese", "rm": "Romansh", "ro": "Romanian", "ru": "Russian", "sd": "Sindhi",
    "si": "Sinhala", "sk": "Slovak", "sl": "Slovenian", "so": "Somali", "sq": "Albanian", "sr": "Serbian", "su": "Sundanese",
    "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "te": "Telugu", "tg": "Tajik", "th": "Thai", "tk": "Turkmen",
    "tl": "Tagalog", "tr": "Turkish", "tt": "Tatar", "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek", "vi": "Vietnamese",
    "xh": "Xhosa", "yi": "Yiddish", "yo": "Yoruba", "zh": "Chinese", "zu": "Zulu",
}
REGIONS = {"en-gb": "English (British)", "en-us": "English (American)", "pt-br": "Portuguese (Brazilian)",
           "pt-pt": "Portuguese (European)", "zh-hans": "Chinese (simplified)", "zh-hant": "Chinese (traditional)"}


def normalised(code: str) -> str:
    """de_DE, DE-de and de-de are one."""
    return code.strip().lower().replace("_", "-")


def base(code: str) -> str:
    """The language, without country or script."""
    return normalised(code).partition("-")[0]


def name_of(code: str) -> str:
    own = normalised(code)
    return REGIONS.get(own) or NAMES.get(own) or (f"{NAMES[base(own)]} ({own})" if base(own) in NAMES else code)


def found_among(code: str, known: Iterable[str]) -> str | None:
    """The known code that a person's code means: the same one, or the only one of the same language."""
    wanted, codes = normalised(code), list(known)
    exact = [own for own in codes if normalised(own) == wanted]
    if exact:
        return exact[0]
    akin = [own for own in codes if base(own) == base(wanted)
            # de-at is served by de, and de by de-at; en-gb by en-us it is not.
            and (normalised(own) == base(own) or wanted == base(wanted))]
    return akin[0] if len(akin) == 1 else None
