"""Names and counted phrases in English and Romanian, read from CLDR (through Babel) and from num2words.

Every function returns a Pair(english, romanian). Counting is the hard part of Romanian: the numeral agrees with the
noun (doi ani, două ore), and from 20 on the noun takes "de" (20 de ani). CLDR knows the plural forms and the "de";
the gender of the units, which Babel does not carry, is written down here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from functools import cache
from typing import Literal

from lamina.demo_corpus.wordlists import Noun, Pair
from lamina.errors import ConfigError

try:
    from babel import Locale
    from babel.dates import format_date, format_interval, format_timedelta, get_quarter_names
    from babel.lists import format_list
    from babel.numbers import format_currency, format_decimal
    from babel.units import format_compound_unit, format_unit
    from num2words import num2words
except ImportError as error:
    raise ConfigError("the demo needs the packages Babel and num2words: pip install 'lamina[demo]'") from error


# British English: num2words says "one hundred and one", and en_GB writes dates day first, as Romanian does.
ENGLISH, ROMANIAN = Locale.parse("en_GB"), Locale.parse("ro")

Field = Literal["day", "week", "month", "year"]

# The one number that stands for a CLDR plural category when we ask Babel for a phrase in that category.
NUMBER_OF_CATEGORY = {"one": 1, "few": 2, "other": 20}

# How the last word of a numeral changes before a feminine or neuter noun; num2words gives the masculine.
AGREEMENT = {
    "m": {},
    "n": {"doi": "două", "doisprezece": "douăsprezece"},
    "f": {"unu": "una", "doi": "două", "doisprezece": "douăsprezece"},
}
ARTICLE = {"m": "un", "n": "un", "f": "o"}

# Well-known territories whose Romanian name stands unchanged after "în", "din" and "spre".
COUNTRIES = (
    "DZ", "AR", "AU", "AT", "BY", "BE", "BR", "BG", "CA", "CL", "CN", "CO", "HR", "CU", "CY", "CZ", "DK", "EG", "EE",
    "FI", "FR", "GE", "DE", "GR", "HU", "IS", "IN", "ID", "IR", "IE", "IL", "IT", "JP", "KE", "LV", "LT", "MK", "MT",
    "MX", "MD", "ME", "MA", "NL", "NZ", "NG", "NO", "PE", "PH", "PL", "PT", "RO", "SA", "RS", "SK", "SI", "ZA", "KR",
    "ES", "SE", "CH", "SY", "TH", "TR", "UA", "AE", "GB", "US", "VN",
)  # fmt: skip
COUNTRIES_WITH_ARTICLE = frozenset({"AE", "GB", "NL", "PH", "US"})

LANGUAGES = (
    "ar", "hy", "bg", "zh", "hr", "cs", "da", "nl", "en", "et", "fi", "fr", "de", "el", "he", "hi", "hu", "id", "it",
    "ja", "ko", "la", "lv", "lt", "mk", "no", "fa", "pl", "pt", "ro", "ru", "sr", "sk", "sl", "es", "sw", "sv", "th",
    "tr", "uk", "vi",
)  # fmt: skip
SCRIPTS = (
    "Arab", "Armn", "Cyrl", "Ethi", "Geor", "Glag", "Goth", "Grek", "Hebr", "Latn", "Mong", "Tibt",
)  # fmt: skip

GENDER_OF_CURRENCY = {
    "AUD": "m", "CAD": "m", "CHF": "m", "CNY": "m", "CZK": "f", "DKK": "f", "EGP": "f", "EUR": "m", "GBP": "f",
    "HUF": "m", "INR": "f", "ISK": "f", "JPY": "m", "MDL": "m", "MXN": "m", "NOK": "f", "PLN": "m", "RON": "m",
    "RSD": "m", "SEK": "f", "UAH": "f", "USD": "m",
}  # fmt: skip

GENDER_OF_UNIT = {
    "area-acre": "m", "area-hectare": "n", "area-square-kilometer": "m", "concentr-percent": "n",
    "digital-gigabyte": "m", "digital-kilobyte": "m", "digital-megabyte": "m", "duration-day": "f",
    "duration-hour": "f", "duration-minute": "n", "duration-month": "f", "duration-week": "f", "duration-year": "m",
    "energy-calorie": "f", "energy-kilojoule": "m", "length-foot": "n", "length-kilometer": "m", "length-meter": "m",
    "length-mile": "f", "length-nautical-mile": "f", "mass-gram": "n", "mass-kilogram": "n", "mass-ounce": "f",
    "mass-pound": "f", "mass-tonne": "f", "power-horsepower": "m", "power-kilowatt": "m", "power-watt": "m",
    "speed-kilometer-per-hour": "m", "speed-knot": "n", "speed-meter-per-second": "m", "speed-mile-per-hour": "f",
    "temperature-celsius": "n", "temperature-fahrenheit": "n", "volume-cup": "f", "volume-cubic-meter": "m",
    "volume-liter": "m", "volume-milliliter": "m", "volume-tablespoon": "f", "volume-teaspoon": "f",
}  # fmt: skip


def country(code: str) -> Pair:
    english = ENGLISH.territories[code]
    return Pair(f"the {english}" if code in COUNTRIES_WITH_ARTICLE else english, ROMANIAN.territories[code])


def language(code: str) -> Pair:
    return Pair(ENGLISH.languages[code], ROMANIAN.languages[code])


def script(code: str) -> Pair:
    return Pair(ENGLISH.scripts[code], ROMANIAN.scripts[code])


def quarter(number: int) -> Pair:
    return Pair(*(get_quarter_names("wide", locale=locale)[number] for locale in (ENGLISH, ROMANIAN)))


def day_period(name: str) -> Pair:
    """CLDR's name of a part of the day: morning1, afternoon1, evening1."""
    return Pair(*(locale.day_periods["format"]["wide"][name] for locale in (ENGLISH, ROMANIAN)))


@cache
def dated(day: date, pattern: str) -> Pair:
    """A day written in a CLDR date pattern, such as "EEEE, d MMMM", in both languages."""
    return Pair(*(format_date(day, pattern, locale=locale) for locale in (ENGLISH, ROMANIAN)))


@cache
def months_between(first: date, last: date) -> Pair:
    return Pair(*(format_interval(first, last, "yMMMM", locale=locale) for locale in (ENGLISH, ROMANIAN)))


def joined(parts: Sequence[Pair], style: Literal["standard", "or"] = "standard") -> Pair:
    """A, B and C; with style "or": A, B or C."""
    return Pair(
        format_list([part.english for part in parts], style, locale=ENGLISH),
        format_list([part.romanian for part in parts], style, locale=ROMANIAN),
    )


@cache
def number(value: int) -> Pair:
    """The number by itself, as in "room number two"."""
    return Pair(num2words(value, lang="en"), num2words(value, lang="ro"))


@cache
def agreeing(value: int, gender: str) -> Pair:
    """The number as it stands before a noun of that gender."""
    english, romanian = number(value)
    if value == 1:
        return Pair(english, ARTICLE[gender])
    *front, last = romanian.split()
    return Pair(english, " ".join([*front, AGREEMENT[gender].get(last, last)]))


@cache
def ordinal(value: int) -> Pair:
    """Third, al treilea: the form before a masculine or neuter noun."""
    romanian = num2words(value, lang="ro", to="ordinal")
    # num2words leaves out the linking vowel of "al optulea".
    return Pair(num2words(value, lang="en", to="ordinal"), romanian.replace("optlea", "optulea"))


@cache
def year(value: int) -> Pair:
    return Pair(num2words(value, lang="en", to="year"), num2words(value, lang="ro"))


def numeral(value: int, gender: str, in_digits: bool) -> Pair:
    """The number before a noun, in words or in digits; one is always a word, for "într-o oră" has no form in digits."""
    if not in_digits or value == 1:
        return agreeing(value, gender)
    return Pair(*(format_decimal(value, locale=locale) for locale in (ENGLISH, ROMANIAN)))


def _framed(value: int, words: Pair, frames: Callable[[Locale, int], str]) -> Pair:
    """Put the words where Babel, asked about a number of the same plural category, puts that number."""
    sides = []
    for locale, side in ((ENGLISH, words.english), (ROMANIAN, words.romanian)):
        example = NUMBER_OF_CATEGORY[locale.plural_form(value)]
        sides.append(frames(locale, example).replace(str(example), side, 1))
    return Pair(*sides)


@cache
def _unit_frame(locale: Locale, example: int, unit: str, per: str | None) -> str:
    if per is None:
        return format_unit(example, unit, "long", locale=locale)
    rate = format_compound_unit(example, unit, denominator_unit=per, length="long", locale=locale)
    assert rate is not None, f"CLDR has no {unit} per {per}"
    return rate


def of_unit(value: int, unit: str, per: str | None = None, *, in_digits: bool = False) -> Pair:
    """Twenty kilometres; with per, twenty litres per minute."""
    words = numeral(value, GENDER_OF_UNIT[unit], in_digits)
    return _framed(value, words, lambda locale, example: _unit_frame(locale, example, unit, per))


@cache
def _money_frame(locale: Locale, example: int, code: str) -> str:
    return format_currency(example, code, "#,##0", locale=locale, currency_digits=False, format_type="name")


def of_money(value: int, code: str, *, in_digits: bool = False) -> Pair:
    """Twenty euros."""
    words = numeral(value, GENDER_OF_CURRENCY[code], in_digits)
    return _framed(value, words, lambda locale, example: _money_frame(locale, example, code))


@cache
def _relative_frame(locale: Locale, example: int, field: Field, is_past: bool) -> str:
    days = {"day": 1, "week": 7, "month": 30, "year": 365}[field]
    span = timedelta(days=days * example) * (-1 if is_past else 1)
    # A threshold out of reach keeps Babel from turning twenty days into three weeks.
    return format_timedelta(span, granularity=field, threshold=10**6, add_direction=True, locale=locale)


def relative(value: int, field: Field, *, is_past: bool) -> Pair:
    """Three weeks ago, in three weeks."""
    words = agreeing(value, GENDER_OF_UNIT[f"duration-{field}"])
    return _framed(value, words, lambda locale, example: _relative_frame(locale, example, field, is_past))


def of_noun(value: int, noun: Noun, *, in_digits: bool = False) -> Pair:
    """Twenty books, for the nouns that are ours and not CLDR's."""
    english, romanian = numeral(value, noun.gender, in_digits)
    category = ROMANIAN.plural_form(value)
    link = " de " if category == "other" else " "
    return Pair(
        f"{english} {noun.english_one if value == 1 else noun.english_many}",
        f"{romanian}{link}{noun.romanian_one if category == 'one' else noun.romanian_many}",
    )
