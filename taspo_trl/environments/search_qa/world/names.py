"""Invented names: pronounceable words, titles and people's names, each given out once.

Pure and reproducible: every draw comes from `random.Random(text).random()`, whose sequence Python promises to keep,
so the same world is made on every platform and version.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence


_STEMS = (
    *("Ald", "Arl", "Bal", "Bren", "Cald", "Carn", "Corv", "Dal", "Dorn", "Drev", "Eld", "Elm", "Fal", "Fenn", "Garl"),
    *("Gorm", "Hald", "Harv", "Hesk", "Ilm", "Jarn", "Kell", "Kest", "Lam", "Lorn", "Mard", "Morl", "Nev", "Norb"),
    *("Old", "Orm", "Pell", "Penr", "Quill", "Rav", "Roth", "Sarn", "Selk", "Skell", "Tarn", "Thorl", "Ulv", "Vald"),
    *("Vern", "Wend", "Wulm", "Yar", "Zell"),
)
_LINKS = ("a", "e", "i", "o", "u", "er", "an", "in", "el", "or", "ing", "am")
_PLACE_ENDINGS = (
    *("wick", "mere", "holt", "ford", "dale", "stead", "garth", "mouth", "ness", "combe", "by", "thorpe", "field"),
    *("haven", "bury", "fell", "moor", "beck", "minster", "lea", "stow", "gate", "rigg", "worth"),
)
_FIRST_ENDINGS = ("a", "en", "is", "o", "an", "ia", "or", "in", "wen", "ric", "eth", "ine")
_LAST_ENDINGS = (
    "sen",
    "man",
    "well",
    "hart",
    "lock",
    "ley",
    "ton",
    "shaw",
    "mond",
    "ard",
    "ick",
    "ow",
    "ema",
    "ander",
)
_ADJECTIVES = (
    *("Amber", "Ashen", "Borrowed", "Broken", "Burning", "Copper", "Crooked", "Distant", "Drifting", "Drowned"),
    *("Empty", "Faithless", "Forgotten", "Frozen", "Gilded", "Glass", "Hidden", "Hollow", "Idle", "Iron"),
    *("Ivory", "Last", "Leaning", "Lonely", "Marble", "Nameless", "Northern", "Painted", "Pale", "Patient"),
    *("Quiet", "Restless", "Salted", "Scarlet", "Silent", "Silver", "Sleeping", "Stolen", "Velvet", "Winter"),
)
_NOUNS = (
    *("Almanac", "Anchor", "Apprentice", "Archive", "Beacon", "Bell", "Candle", "Carpenter", "Compass", "Courtyard"),
    *("Cradle", "Daughter", "Dovecote", "Embassy", "Ferry", "Fiddler", "Garden", "Gate", "Granary", "Harvest"),
    *("Herald", "Inheritance", "Journal", "Lantern", "Ledger", "Lighthouse", "Locksmith", "Meadow", "Mill", "Mirror"),
    *("Orchard", "Oath", "Pilgrim", "Quarry", "Regatta", "Sermon", "Shore", "Staircase", "Tide", "Window"),
)
_BIRDS = ("Auk", "Bittern", "Curlew", "Gannet", "Heron", "Kestrel", "Lapwing", "Petrel", "Plover", "Skua", "Tern")


class NameBook:
    """Draws names and never gives the same one twice, whatever it is for."""

    def __init__(self, seed: str):
        self._random = random.Random(seed)
        self._used: set[str] = set()

    def pick(self, options: Sequence[str]) -> str:
        return options[int(self._random.random() * len(options))]

    def word(self) -> str:
        """A place's name, for example "Brenwick"."""
        return self._fresh(self._place, lambda: self._place(self.pick(_LINKS)))

    def person(self) -> str:
        """First and last name, for example "Dalia Morlhart"."""
        return self._fresh(self._person, lambda: self._person(self.pick(_LINKS)))

    def title(self) -> str:
        """The title of a book or painting. Where the short ones run out, a place tells two apart."""
        return self._fresh(
            lambda: f"The {self.pick(_ADJECTIVES)} {self.pick(_NOUNS)}",
            lambda: f"The {self.pick(_ADJECTIVES)} {self.pick(_NOUNS)} of {self._place()}",
        )

    def suite(self) -> str:
        return self._fresh(
            lambda: f"{self.pick(_ADJECTIVES)} {self.pick(_NOUNS)} Suite",
            lambda: f"{self.pick(_ADJECTIVES)} {self.pick(_NOUNS)} Suite in {self._place()}",
        )

    def ship(self) -> str:
        return self._fresh(
            lambda: f"{self.pick(_ADJECTIVES)} {self.pick(_BIRDS)}",
            lambda: f"{self.pick(_ADJECTIVES)} {self.pick(_BIRDS)} of {self._place()}",
        )

    def called(self, ending: str) -> str:
        """A word with an ending of its own, for example "Brenwick Bridge"; the word stands for nothing else."""
        return f"{self.word()} {ending}"

    def _place(self, link: str = "") -> str:
        return self.pick(_STEMS) + link + self.pick(_PLACE_ENDINGS)

    def _person(self, link: str = "") -> str:
        return f"{self.pick(_STEMS)}{self.pick(_FIRST_ENDINGS)} {self.pick(_STEMS)}{link}{self.pick(_LAST_ENDINGS)}"

    def _fresh(self, draw: Callable[[], str], draw_longer: Callable[[], str]) -> str:
        for attempt in range(1000):
            name = draw() if attempt < 20 else draw_longer()
            if name.lower() not in self._used:
                self._used.add(name.lower())
                return name
        raise AssertionError("the invented words are used up; make a smaller world")
