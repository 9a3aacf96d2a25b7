"""The words that are ours and not CLDR's: persons, things to count, places, in English and Romanian."""

from __future__ import annotations

from typing import NamedTuple


class Pair(NamedTuple):
    english: str
    romanian: str


class Noun(NamedTuple):
    """A countable noun: English singular and plural, Romanian singular and plural, Romanian gender (m, f, n)."""

    english_one: str
    english_many: str
    romanian_one: str
    romanian_many: str
    gender: str


# Third person singular, so that one verb form fits all of them.
PERSONS = (
    Pair("he", "el"), Pair("she", "ea"), Pair("Andrei", "Andrei"), Pair("Elena", "Elena"), Pair("Maria", "Maria"),
    Pair("Mihai", "Mihai"), Pair("my brother", "fratele meu"), Pair("my sister", "sora mea"),
    Pair("my grandmother", "bunica mea"), Pair("my grandfather", "bunicul meu"), Pair("my uncle", "unchiul meu"),
    Pair("our neighbour", "vecinul nostru"), Pair("our daughter", "fiica noastră"), Pair("our son", "fiul nostru"),
    Pair("the doctor", "medicul"), Pair("the teacher", "profesorul"), Pair("the engineer", "inginerul"),
    Pair("the student", "studentul"), Pair("the driver", "șoferul"), Pair("the journalist", "jurnalistul"),
    Pair("the mayor", "primarul"), Pair("the director", "directorul"),
)  # fmt: skip

GOODS = (
    Noun("apple", "apples", "măr", "mere", "n"), Noun("pear", "pears", "pară", "pere", "f"),
    Noun("orange", "oranges", "portocală", "portocale", "f"), Noun("egg", "eggs", "ou", "ouă", "n"),
    Noun("book", "books", "carte", "cărți", "f"), Noun("notebook", "notebooks", "caiet", "caiete", "n"),
    Noun("pencil", "pencils", "creion", "creioane", "n"), Noun("newspaper", "newspapers", "ziar", "ziare", "n"),
    Noun("chair", "chairs", "scaun", "scaune", "n"), Noun("table", "tables", "masă", "mese", "f"),
    Noun("lamp", "lamps", "lampă", "lămpi", "f"), Noun("bottle", "bottles", "sticlă", "sticle", "f"),
    Noun("glass", "glasses", "pahar", "pahare", "n"), Noun("plate", "plates", "farfurie", "farfurii", "f"),
    Noun("shirt", "shirts", "cămașă", "cămăși", "f"), Noun("coat", "coats", "palton", "paltoane", "n"),
    Noun("bicycle", "bicycles", "bicicletă", "biciclete", "f"), Noun("flower", "flowers", "floare", "flori", "f"),
    Noun("tree", "trees", "copac", "copaci", "m"), Noun("bread roll", "bread rolls", "chiflă", "chifle", "f"),
    Noun("phone", "phones", "telefon", "telefoane", "n"), Noun("picture", "pictures", "tablou", "tablouri", "n"),
    Noun("box", "boxes", "cutie", "cutii", "f"), Noun("bag", "bags", "sacoșă", "sacoșe", "f"),
)  # fmt: skip
LETTERS = (
    Noun("letter", "letters", "scrisoare", "scrisori", "f"), Noun("poem", "poems", "poem", "poeme", "n"),
    Noun("article", "articles", "articol", "articole", "n"), Noun("novel", "novels", "roman", "romane", "n"),
)  # fmt: skip
CONTENTS = (Noun("page", "pages", "pagină", "pagini", "f"), Noun("word", "words", "cuvânt", "cuvinte", "n"))
INHABITANTS = (Noun("inhabitant", "inhabitants", "locuitor", "locuitori", "m"),)
SEATS = (Noun("seat", "seats", "loc", "locuri", "n"),)

# Masculine or neuter, definite: they share the participle "construit".
BUILDINGS = (
    Pair("castle", "castelul"), Pair("palace", "palatul"), Pair("bridge", "podul"), Pair("tower", "turnul"),
    Pair("theatre", "teatrul"), Pair("museum", "muzeul"), Pair("temple", "templul"),
)  # fmt: skip
VENUES = (
    Pair("theatre", "teatrul"), Pair("stadium", "stadionul"), Pair("cinema", "cinematograful"), Pair("opera", "opera"),
    Pair("concert hall", "sala de concerte"), Pair("restaurant", "restaurantul"),
)  # fmt: skip
GROUNDS = (
    Pair("garden", "grădina"), Pair("field", "câmpul"), Pair("courtyard", "curtea"), Pair("park", "parcul"),
    Pair("swimming pool", "piscina"), Pair("hall", "sala"), Pair("ship", "vaporul"), Pair("bridge", "podul"),
)  # fmt: skip
LIQUIDS = (Pair("milk", "lapte"), Pair("water", "apă"), Pair("oil", "ulei"), Pair("honey", "miere"))
SOLIDS = (
    Pair("sugar", "zahăr"), Pair("flour", "făină"), Pair("rice", "orez"), Pair("butter", "unt"),
    Pair("cheese", "brânză"), Pair("salt", "sare"),
)  # fmt: skip
PERIODS = (Pair("hour", "oră"), Pair("day", "zi"), Pair("week", "săptămână"), Pair("month", "lună"), Pair("year", "an"))
