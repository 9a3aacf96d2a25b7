"""A little English-French corpus, made on the spot: real grammar, few words, so that a small model learns it in seconds.

French wants the noun's gender in front of the noun and behind it ("une petite maison blanche"), and puts some adjectives on the
other side: word by word does not do.
"""

import random

NOUNS = {"boat": ("bateau", 0), "dog": ("chien", 0), "cat": ("chat", 0), "boy": ("garçon", 0), "horse": ("cheval", 0),
         "garden": ("jardin", 0), "river": ("rivière", 1), "moon": ("lune", 1), "house": ("maison", 1), "girl": ("fille", 1),
         "stone": ("pierre", 1), "door": ("porte", 1)}
DETERMINERS = {"the": ("le", "la"), "a": ("un", "une"), "this": ("ce", "cette"), "my": ("mon", "ma")}
BEFORE = {"small": ("petit", "petite"), "old": ("vieux", "vieille"), "big": ("grand", "grande"), "new": ("nouveau", "nouvelle")}
BEHIND = {"red": ("rouge", "rouge"), "white": ("blanc", "blanche"), "green": ("vert", "verte"), "black": ("noir", "noire")}
VERBS = {"sees": "voit", "finds": "trouve", "watches": "regarde", "likes": "aime", "follows": "suit"}
PLACES = {"behind": "derrière", "under": "sous", "with": "avec", "on": "sur", "in": "dans"}


def noun_phrase(rng: random.Random) -> tuple[list[str], list[str]]:
    noun = rng.choice(list(NOUNS))
    french, gender = NOUNS[noun]
    determiner = rng.choice(list(DETERMINERS))
    before = [rng.choice(list(BEFORE))] if rng.random() < 0.5 else []
    behind = [rng.choice(list(BEHIND))] if rng.random() < 0.5 else []
    return ([determiner, *before, *behind, noun],
            [DETERMINERS[determiner][gender], *(BEFORE[word][gender] for word in before), french,
             *(BEHIND[word][gender] for word in behind)])


def sentence(rng: random.Random) -> tuple[str, str]:
    verb, place = rng.choice(list(VERBS)), rng.choice(list(PLACES))
    (who, qui), (whom, quoi), (where, ou) = (noun_phrase(rng) for _ in range(3))
    english, french = [*who, verb, *whom], [*qui, VERBS[verb], *quoi]
    if rng.random() < 0.5:
        english, french = [*english, place, *where], [*french, PLACES[place], *ou]
    return " ".join(english), " ".join(french)


def pairs(number: int, seed: int = 1) -> list[tuple[str, str]]:
    """So many different sentences with their translations."""
    rng, found = random.Random(seed), {}
    while len(found) < number:
        found.setdefault(*sentence(rng))
    return list(found.items())
