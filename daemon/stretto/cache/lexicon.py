"""English words as the gate sees them: which carry no meaning of their own, which mean the same, which are numbers.

Only words of these tables are passed over or taken for each other. Whatever is not in them counts as itself, in any language, so
what the tables lack costs a hit and never lets a wrong one through.
"""

from __future__ import annotations

from types import MappingProxyType


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


CONTRACTIONS = MappingProxyType(
    {
        "can't": "can not", "cannot": "can not", "won't": "will not", "shan't": "shall not", "ain't": "is not", "let's": "let us",
        "what's": "what is", "who's": "who is", "where's": "where is", "when's": "when is", "why's": "why is", "how's": "how is",
        "it's": "it is", "that's": "that is", "there's": "there is", "here's": "here is", "he's": "he is", "she's": "she is",
        "i'm": "i am", "gonna": "going to", "wanna": "want to",
    }
)  # fmt: skip
"""Besides the regular ones (n't, 're, 'll, 've, 'd)."""

NEGATIONS = _set("""
    not no never none nothing nobody nowhere neither nor without unable lack lacking lacks lacked except unless cease stop
    avoid fail fails failed failing refuse hardly barely
    """)
"""Each turns a meaning round, and may stand for another of them."""

PARTICLES = _set("""
    up down out off over away back before after above below under against until since during through around behind
    ahead forward forwards backward backwards twice again more less most least only all every each both or
    """)
"""Small words that must be the same: a verb with another of them is another verb."""

FREE = _set("""
    a an the this that these those there of in on at by for with from to into as per and than then so but if between any
    is are am was were be been being do does did doing done have has had having will would shall should can could may
    might must ought need needs needed require requires required necessary possible allowed
    i me my mine myself you your yours yourself we us our ours it its one he him his she her hers they them their theirs
    someone somebody anyone anybody what which who whom whose where when why how whether
    please just actually exactly really simply also now hello hi hey thanks thank kindly ok okay
    s t re ll ve d m
    """)
"""Words that carry no content; what they say otherwise (who, when, whether) is looked at apart."""

PREAMBLES = (
    "can you", "could you", "would you", "will you", "please", "kindly", "i want to know", "i would like to know", "i need to know",
    "i was wondering", "i wonder", "do you know", "tell me", "tell us", "explain to me", "explain", "describe", "let me know", "help me understand",
    "give me an explanation of", "calculate", "compute", "work out", "i have a question", "quick question", "hello", "hi", "hey", "show me", "teach me", "give me", "give us",
    "i would like to", "i would like", "i want to", "i want", "i need to", "i need", "about",
)  # fmt: skip
"""Beginnings that only ask for an answer, or say who wants it."""

HYPHENATED = _set("e-mail wi-fi x-ray t-shirt")
"""Words that are one with their hyphen; others are the same without it."""

LEADING = MappingProxyType({"name": "list", "enumerate": "list"})
"""Words that mean another one where they begin an instruction."""

POSSIBLE = _set("can could may might possible able allowed")
ADVISABLE = _set("should ought")
NECESSARY = _set("must need needs needed require requires required necessary")
PAST = _set("was were did had")
PRESENT = _set("is are am do does has have")
AUXILIARIES = _set(
    "is are am was were do does did can could should shall will would has have had may might must"
)
"""A sentence that begins with one is answered by yes or no."""
PRONOUNS = MappingProxyType(
    {
        form: person
        for person, forms in {
            "i": "i me my mine myself we us our ours", "you": "you your yours yourself", "he": "he him his", "she": "she her hers",
            "they": "they them their theirs",
        }.items()
        for form in forms.split()
    }
)  # fmt: skip
PASSIVE = _set("by be been")
DO_SUPPORT = _set("do does did")
DIRECTIONS = _set(
    "to into onto from than for of in on at by with as then before after over under above below against behind until since"
)
"""Words before something that may not change places with what stands elsewhere."""
STEPPED_OVER = _set(
    "the a an this that these those any my your his her its our their i you he she we they it one of able be been being have has had"
)
"""Words that may stand between a direction, or a negation, and what it is about."""
DEGREES = _set("""
    many much long far tall high deep big large old often fast heavy hot cold wide soon late early good bad likely safe
    expensive cheap dangerous hard difficult easy strong loud bright thick healthy accurate common rich poor small
    """)
"""After ``how``, they ask for a measure and not for a way."""

NUMBER_WORDS = MappingProxyType(
    {
        word: value
        for value, words in enumerate(
            (
                "zero", None, "two second", "three third", "four fourth", "five fifth", "six sixth", "seven seventh", "eight eighth",
                "nine ninth", "ten tenth", "eleven eleventh", "twelve twelfth", "thirteen thirteenth", "fourteen fourteenth",
                "fifteen fifteenth", "sixteen sixteenth", "seventeen seventeenth", "eighteen eighteenth", "nineteen nineteenth",
            )
        )
        if words
        for word in words.split()
    }
    | {"first": 1, "1st": 1, "half": 0.5}
)  # fmt: skip
"""``one`` is not among them: it is a pronoun as often, and any number but one stands in words that are."""

TENS = MappingProxyType(
    {
        "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
        "twentieth": 20, "thirtieth": 30, "fortieth": 40, "fiftieth": 50, "sixtieth": 60, "seventieth": 70, "eightieth": 80, "ninetieth": 90,
    }
)  # fmt: skip
SCALES = MappingProxyType({"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "dozen": 12})

OPERATORS = MappingProxyType(
    {
        "times": "*", "multiplied": "*", "x": "*", "×": "*", "·": "*", "*": "*", "plus": "+", "+": "+", "minus": "-", "-": "-", "−": "-",
        "divided": "/", "÷": "/", "/": "/", "equals": "=", "=": "=", "percent": "%", "%": "%", "^": "^", "<": "<", ">": ">",
        "degrees": "°", "degree": "°", "°": "°",
    }
)  # fmt: skip
"""Signs of arithmetic, and the words for them next to a number."""

IRREGULAR = MappingProxyType(
    {
        form: base
        for base, forms in {
            "write": "wrote written", "undo": "undone undid", "do": "done did", "build": "built", "make": "made", "go": "went gone goes", "get": "got gotten", "take": "took taken",
            "give": "gave given", "see": "saw seen", "know": "knew known", "grow": "grew grown", "shrink": "shrank shrunk", "begin": "began begun",
            "drink": "drank drunk", "eat": "ate eaten", "drive": "drove driven", "fly": "flew flown flies", "buy": "bought", "sell": "sold",
            "tell": "told", "say": "said says", "find": "found", "lose": "lost", "win": "won", "pay": "paid", "send": "sent", "spend": "spent",
            "speak": "spoke spoken", "break": "broke broken", "choose": "chose chosen", "freeze": "froze frozen", "forget": "forgot forgotten",
            "wear": "wore worn", "teach": "taught", "think": "thought", "bring": "brought", "catch": "caught", "feel": "felt", "keep": "kept",
            "sleep": "slept", "leave": "left", "meet": "met", "run": "ran", "sing": "sang sung", "swim": "swam swum", "fall": "fell fallen",
            "hold": "held", "become": "became", "come": "came", "die": "died dying dies", "lie": "lying", "tie": "tying", "mean": "meant",
            "child": "children", "man": "men", "woman": "women", "foot": "feet", "tooth": "teeth", "mouse": "mice", "goose": "geese",
            "life": "lives", "knife": "knives", "leaf": "leaves", "wolf": "wolves", "half": "halves", "analysis": "analyses",
            "criterion": "criteria", "index": "indices indexes", "matrix": "matrices", "vertex": "vertices", "datum": "data",
        }.items()
        for form in forms.split()
    }
)  # fmt: skip

UNCHANGED = _set(
    "news series species physics mathematics economics always perhaps plus minus various bed red need speed feed seed "
    "embed thing king ring string spring during evening morning wedding building ceiling nothing something anything "
    "everything interest lens gas bus atlas texas paris"
)
"""Words whose endings are no endings."""

SAME = (
    "delete remove erase", "begin start commence", "end finish conclude", "big large huge", "biggest largest greatest", "small little tiny",
    "smallest littlest", "fast quick rapid", "fastest quickest", "buy purchase", "repair fix mend", "movie film", "car automobile",
    "tall height", "deep depth", "wide width", "long length", "old age", "heavy weight", "colour color", "centre center", "metre meter",
    "centimetre centimeter", "kilometre kilometer", "litre liter", "favourite favorite", "behaviour behavior", "organise organize",
    "summarise summarize summary", "analyse analyze", "licence license", "programme program", "grey gray", "construct build",
    "author write", "produce make create", "calculate compute", "app application", "phone telephone", "cellphone mobile smartphone",
    "tv television", "photo picture photograph", "wifi wi-fi", "email e-mail", "reply answer respond response", "doctor physician",
    "attorney lawyer", "kid child", "shop store", "holiday vacation", "apartment flat", "autumn fall", "petrol gasoline", "lorry truck",
    "elevator lift", "permit allow", "help assist", "reason cause", "happen occur", "shipping delivery ship deliver", "cost price",
    "directory folder", "bike bicycle", "usa america", "uk britain", "ill sick", "differ difference", "mean meaning", "far distance",
    "population inhabitant", "recommend suggest advise", "show display", "alter modify", "obtain acquire", "select choose pick",
    "shut close", "speak talk", "whole entire", "wrong incorrect", "correct right", "maximum max", "minimum min", "information info",
    "advertisement advert ad", "refrigerator fridge", "exam examination", "math maths mathematics", "laboratory lab",
    "vaccine vaccination", "sofa couch", "soccer football", "trousers pants", "garbage rubbish trash", "timetable schedule",
    "many much", "locate location", "found founder", "invent inventor", "discover discoverer", "paint painter",
)  # fmt: skip
"""Groups of words that may stand for each other, whatever stands beside them."""

PHRASES = (
    ("write me", "write"), ("how many people live in", "what is the population of"), ("sign in", "log in"), ("signin", "log in"), ("login", "log in"), ("get rid of", "delete"), ("in order to", "to"), ("how much time", "how long"), ("at what time", "when"), ("what time", "when"),
    ("in what year", "when"), ("in which year", "when"), ("what year", "when"), ("which year", "when"), ("on what day", "when"),
    ("what day", "when"), ("which day", "when"), ("what date", "when"), ("which date", "when"), ("on what date", "when"),
    ("when is the best time", "what is the best time"),
    ("which person", "who"), ("what person", "who"), ("which author", "who"), ("which artist", "who"), ("which writer", "who"),
    ("which scientist", "who"), ("which inventor", "who"), ("which painter", "who"), ("in which place", "where"), ("in what place", "where"),
    ("what is the reason that", "why"), ("what is the reason for", "why"), ("what is the reason", "why"), ("what is the cause of", "why"),
    ("what are the reasons for", "why"), ("what are the causes of", "why"), ("what causes", "why"), ("what makes", "why"), ("how come", "why"),
    ("for what reason", "why"), ("what reason", "why"),
    ("is there a way to", "how to"), ("is there any way to", "how to"), ("what is the best way to", "how to"),
    ("what is the right way to", "how to"), ("what is a good way to", "how to"), ("what is the correct way to", "how to"),
    ("what is the proper way to", "how to"), ("what is the way to", "how to"), ("what are the steps to", "how to"),
    ("what steps", "how"), ("in what way", "how"), ("in which way", "how"), ("what do i have to do to", "how to"), ("what must i do to", "how to"),
    ("what do i need to do to", "how to"), ("what should i do to", "how to"), ("what can i do to", "how to"), ("what can i do if", "how if"),
    ("what should i do if", "how if"), ("what should i do", "how"), ("what can i do", "how"), ("have to", "must"), ("has to", "must"), ("what is the procedure for", "how"), ("what is the procedure to", "how to"), ("how does that work", "how"),
    ("how does it work", "how"), ("how do i do that", "how"), ("how does one", "how"), ("the names of", "name"), ("for what", "what"),
    ("per day", "every day"), ("each day", "every day"), ("daily", "every day"), ("per week", "every week"), ("per year", "every year"),
    ("per month", "every month"), ("what does", "what"), ("stand for", "abbreviation"), ("the meaning of the abbreviation", "abbreviation"),
    ("the purpose of", "do"), ("is it possible to", "can"), ("is it possible", "can"), ("am i able to", "can i"), ("am i not able to", "can i not"),
    ("am i allowed to", "can i"), ("are we allowed to", "can we"), ("first name", "forename"), ("last name", "surname"), ("going to", "will"),
)  # fmt: skip
"""Turns of phrase and what stands for them before words are looked at; the longest that fits is taken."""
