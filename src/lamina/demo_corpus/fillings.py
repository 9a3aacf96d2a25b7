"""What can stand in a template's slot: each slot name maps to a function that draws one Pair.

A slot draws both sides together, so the two sentences of a template always speak of the same thing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from functools import cache
from random import Random
from typing import Literal

from lamina.demo_corpus import lexicon
from lamina.demo_corpus.wordlists import (
    BUILDINGS,
    CONTENTS,
    GOODS,
    GROUNDS,
    INHABITANTS,
    LETTERS,
    LIQUIDS,
    PERIODS,
    PERSONS,
    SEATS,
    SOLIDS,
    VENUES,
    Noun,
    Pair,
)

Draw = Callable[[Random], Pair]

# Years in which a sentence in the past tense, or in the future tense, makes sense.
PAST_YEARS, COMING_YEARS = range(1950, 2025), range(2027, 2040)
# One numeral in this many is written in digits: enough to learn, too few to make copying the source pay.
ONE_IN_DIGITS = 6
# A number is drawn below a ceiling that is itself drawn, so small numbers, which everyone uses more, come up more.
CEILINGS = (12, 19, 99, 99, 999)


def draw_number(rng: Random, low: int, high: int) -> int:
    return rng.randint(low, min(high, rng.choice([ceiling for ceiling in CEILINGS if ceiling > low])))


def draw_is_digits(rng: Random) -> bool:
    return rng.randrange(ONE_IN_DIGITS) == 0


def draw_day(rng: Random, years: Sequence[int]) -> date:
    return date(rng.choice(years), 1, 1) + timedelta(days=rng.randrange(365))


def one_of(pairs: Sequence[Pair]) -> Draw:
    return lambda rng: rng.choice(pairs)


def measure(low: int, high: int, *units: str, per: str | None = None) -> Draw:
    return lambda rng: lexicon.of_unit(
        draw_number(rng, low, high), rng.choice(units), per, in_digits=draw_is_digits(rng)
    )


def counted(low: int, high: int, nouns: Sequence[Noun]) -> Draw:
    return lambda rng: lexicon.of_noun(draw_number(rng, low, high), rng.choice(nouns), in_digits=draw_is_digits(rng))


def either(*draws: Draw) -> Draw:
    return lambda rng: rng.choice(draws)(rng)


def on_day(pattern: str, years: Sequence[int]) -> Draw:
    return lambda rng: lexicon.dated(draw_day(rng, years), pattern)


def some_of(parts: Sequence[Pair], counts: Sequence[int], style: Literal["standard", "or"] = "standard") -> Draw:
    """A list of different parts."""
    return lambda rng: lexicon.joined(rng.sample(parts, rng.choice(counts)), style)


def spoken_day(rng: Random) -> Pair:
    """The third of March: English counts the days with ordinals, Romanian with cardinals, except the first."""
    day = draw_day(rng, PAST_YEARS)
    month = lexicon.dated(day, "MMMM")
    romanian_day = "întâi" if day.day == 1 else lexicon.number(day.day).romanian
    return Pair(f"the {lexicon.ordinal(day.day).english} of {month.english}", f"{romanian_day} {month.romanian}")


def month_span(rng: Random) -> Pair:
    first, last = sorted(rng.sample(range(1, 13), 2))
    year = rng.choice(COMING_YEARS)
    return lexicon.months_between(date(year, first, 1), date(year, last, 1))


def in_order(pairs: Sequence[Pair], english: str, romanian: str) -> Draw:
    """From Monday to Friday: two of a sequence, the earlier first, in a frame with two places."""

    def draw(rng: Random) -> Pair:
        first, last = (pairs[index] for index in sorted(rng.sample(range(len(pairs)), 2)))
        return Pair(english.format(first.english, last.english), romanian.format(first.romanian, last.romanian))

    return draw


def century(rng: Random) -> Pair:
    english, romanian = lexicon.ordinal(rng.randint(11, 20))
    return Pair(f"{english} century", f"secolul {romanian}")


def clock(period: str, first_hour: int, last_hour: int) -> Draw:
    """A time of day as people say it; hours are feminine in Romanian, except that one stays "unu"."""

    def draw(rng: Random) -> Pair:
        hour = rng.randint(first_hour, last_hour)
        # Every other time a round one; otherwise a multiple of five, as in speech.
        minute = rng.choice((0, 15, 30, 45)) if rng.randrange(2) else rng.randrange(5, 60, 5)
        if draw_is_digits(rng):
            return Pair(f"{hour:02}:{minute:02}", f"ora {hour:02}:{minute:02}")
        return _spoken_clock(hour, minute, period)

    return draw


@cache
def _spoken_clock(hour: int, minute: int, period: str) -> Pair:
    before = minute > 30
    named_hour = (hour + before - 1) % 12 + 1
    hour_en, hour_ro = lexicon.number(1) if named_hour == 1 else lexicon.agreeing(named_hour, "f")
    if minute == 0:
        spoken = Pair(f"{hour_en} o'clock", f"ora {hour_ro}")
    elif minute == 30:
        spoken = Pair(f"half past {hour_en}", f"{hour_ro} și jumătate")
    else:
        distance = 60 - minute if before else minute
        part = Pair("a quarter", "un sfert") if distance == 15 else lexicon.number(distance)
        spoken = Pair(
            f"{part.english} {'to' if before else 'past'} {hour_en}",
            f"{hour_ro} {'fără' if before else 'și'} {part.romanian}",
        )
    period_en, period_ro = lexicon.day_period(period)
    return Pair(f"{spoken.english} {period_en}", f"{spoken.romanian} {period_ro}")


def lasting(*choices: dict[str, range]) -> Draw:
    """Two hours and ten minutes: one of the choices, each a number of every unit it names."""

    def draw(rng: Random) -> Pair:
        in_digits = draw_is_digits(rng)
        amounts = [(draw_number(rng, span[0], span[-1]), unit) for unit, span in rng.choice(choices).items()]
        return lexicon.joined(
            [lexicon.of_unit(value, f"duration-{unit}", in_digits=in_digits) for value, unit in amounts]
        )

    return draw


def relative(is_past: bool) -> Draw:
    fields: tuple[lexicon.Field, ...] = ("day", "week", "month", "year")
    return lambda rng: lexicon.relative(draw_number(rng, 1, 60), rng.choice(fields), is_past=is_past)


def price(rng: Random) -> Pair:
    code = rng.choice(sorted(lexicon.GENDER_OF_CURRENCY))
    return lexicon.of_money(draw_number(rng, 2, 999), code, in_digits=draw_is_digits(rng))


def price_rise(rng: Random) -> Pair:
    """From twenty to thirty euros: the first number agrees with a noun that only the second one carries."""
    code = rng.choice(sorted(lexicon.GENDER_OF_CURRENCY))
    low = draw_number(rng, 2, 89)
    start = lexicon.agreeing(low, lexicon.GENDER_OF_CURRENCY[code])
    end = lexicon.of_money(low + draw_number(rng, 1, 99), code)
    return Pair(f"from {start.english} to {end.english}", f"de la {start.romanian} la {end.romanian}")


def comparison(rng: Random) -> Pair:
    first, second = draw_number(rng, 2, 999), draw_number(rng, 2, 999)
    second += first == second
    english, romanian = ("greater", "mare") if first > second else ("less", "mic")
    (first_en, first_ro), (second_en, second_ro) = lexicon.number(first), lexicon.number(second)
    return Pair(f"{first_en} is {english} than {second_en}", f"{first_ro} este mai {romanian} decât {second_ro}")


def equation(rng: Random) -> Pair:
    first, second = sorted((rng.randint(1, 99), rng.randint(1, 99)), reverse=True)
    sign, result = rng.choice((("plus", first + second), ("minus", first - second)))
    left, right, total = lexicon.number(first), lexicon.number(second), lexicon.number(result)
    return Pair(
        f"{left.english} {sign} {right.english} is {total.english}",
        f"{left.romanian} {sign} {right.romanian} fac {total.romanian}",
    )


def several(low: int, high: int, nouns: Sequence[Noun], counts: Sequence[int]) -> Draw:
    """Three apples, twenty books and a chair: different things, all in words or all in digits."""

    def draw(rng: Random) -> Pair:
        in_digits = draw_is_digits(rng)
        chosen = rng.sample(nouns, rng.choice(counts))
        return lexicon.joined(
            [lexicon.of_noun(draw_number(rng, low, high), noun, in_digits=in_digits) for noun in chosen]
        )

    return draw


def oven_heat(rng: Random) -> Pair:
    return lexicon.of_unit(rng.randrange(150, 255, 5), "temperature-celsius", in_digits=draw_is_digits(rng))


def build_slots() -> dict[str, Draw]:
    """All slots by name."""
    countries = [lexicon.country(code) for code in lexicon.COUNTRIES]
    languages = [lexicon.language(code) for code in lexicon.LANGUAGES]
    goods = [Pair(noun.english_many, noun.romanian_many) for noun in GOODS]
    # Any week and any year will do: only the names are read off.
    weekdays = [lexicon.dated(date(2024, 1, day), "EEEE") for day in range(1, 8)]
    months = [lexicon.dated(date(2024, month, 1), "MMMM") for month in range(1, 13)]
    morning, afternoon, evening = (clock("morning1", 6, 11), clock("afternoon1", 13, 17), clock("evening1", 18, 20))
    hours_long, minutes_long = {"hour": range(1, 13)}, {"minute": range(2, 60)}
    years_long, months_long = {"year": range(1, 41)}, {"month": range(1, 12)}
    weeks_long, days_long = {"week": range(1, 31)}, {"day": range(2, 91)}
    return {
        # names
        "person": one_of(PERSONS),
        "country": one_of(countries),
        "countries": some_of(countries, (2, 3)),
        "either_country": some_of(countries, (2, 3), "or"),
        "language": one_of(languages),
        "languages": some_of(languages, (2, 3)),
        "script": one_of([lexicon.script(code) for code in lexicon.SCRIPTS]),
        "building": one_of(BUILDINGS),
        "venue": one_of(VENUES),
        "ground": one_of(GROUNDS),
        "liquid": one_of(LIQUIDS),
        "solid": one_of(SOLIDS),
        "goods": some_of(goods, (2, 3)),
        # days and times
        "weekday": one_of(weekdays),
        "weekdays": in_order(weekdays, "from {} to {}", "de {} până {}"),
        "weekday_date": on_day("EEEE, d MMMM", PAST_YEARS),
        "month": one_of(months),
        "months": in_order(months, "from {} to {}", "din {} până în {}"),
        "month_span": month_span,
        "coming_month": on_day("MMMM y", COMING_YEARS),
        "past_date": on_day("d MMMM y", PAST_YEARS),
        "coming_date": on_day("EEEE, d MMMM y", COMING_YEARS),
        "spoken_day": spoken_day,
        "quarter": one_of([lexicon.quarter(number) for number in range(1, 5)]),
        "past_year": on_day("y", PAST_YEARS),
        "spoken_year": lambda rng: lexicon.year(rng.choice(PAST_YEARS)),
        "century": century,
        "morning": morning,
        "evening": either(afternoon, evening),
        "clock": either(morning, afternoon, evening),
        "ago": relative(is_past=True),
        "ahead": relative(is_past=False),
        "short_time": lasting(hours_long, minutes_long, hours_long | minutes_long),
        "travel_time": lasting(hours_long, hours_long | minutes_long),
        "long_time": lasting(years_long, months_long, weeks_long, days_long, years_long | months_long),
        "film_time": measure(60, 240, "duration-minute"),
        "oven_time": measure(10, 90, "duration-minute"),
        "period": one_of(PERIODS),
        # measurements
        "age": measure(18, 80, "duration-year"),
        "percent": measure(1, 99, "concentr-percent"),
        "walk": either(
            measure(2, 60, "length-kilometer", "length-mile"), measure(100, 999, "length-meter", "length-foot")
        ),
        "sea_distance": measure(2, 999, "length-nautical-mile", "length-kilometer"),
        "length": measure(20, 300, "length-meter"),
        "parcel_weight": either(measure(1, 40, "mass-kilogram", "mass-pound"), measure(50, 999, "mass-gram")),
        "kitchen_weight": either(measure(20, 999, "mass-gram"), measure(1, 30, "mass-ounce")),
        "harvest": measure(2, 999, "mass-tonne"),
        "spoonful": either(
            measure(1, 12, "volume-cup", "volume-tablespoon", "volume-teaspoon"), measure(20, 999, "volume-milliliter")
        ),
        "volume": measure(2, 999, "volume-liter", "volume-cubic-meter"),
        "area": measure(2, 999, "area-hectare", "area-acre", "area-square-kilometer"),
        "car_speed": measure(20, 250, "speed-kilometer-per-hour", "speed-mile-per-hour"),
        "wind_speed": measure(5, 90, "speed-kilometer-per-hour", "speed-meter-per-second", "speed-knot"),
        "flow": measure(2, 999, "volume-liter", "volume-cubic-meter", per="duration-minute"),
        "temperature": either(measure(1, 35, "temperature-celsius"), measure(20, 90, "temperature-fahrenheit")),
        "oven_heat": oven_heat,
        "power": measure(2, 999, "power-kilowatt", "power-watt", "power-horsepower"),
        "energy": measure(20, 999, "energy-calorie", "energy-kilojoule"),
        "storage": measure(2, 999, "digital-gigabyte", "digital-megabyte", "digital-kilobyte"),
        # money
        "price": price,
        "price_rise": price_rise,
        # numbers and things
        "number": lambda rng: lexicon.number(draw_number(rng, 2, 999)),
        "ordinal": lambda rng: lexicon.ordinal(rng.randint(1, 40)),
        "floor": lambda rng: lexicon.ordinal(rng.randint(1, 30)),
        "comparison": comparison,
        "equation": equation,
        "things": counted(1, 999, GOODS),
        "letters": counted(1, 99, LETTERS),
        "contents": counted(100, 999, CONTENTS),
        "inhabitants": counted(100, 999, INHABITANTS),
        "seats": counted(20, 999, SEATS),
        "shopping": several(1, 99, GOODS, (2, 3)),
        "stock": several(2, 999, GOODS, (2,)),
    }
