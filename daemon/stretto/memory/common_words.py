"""Words so common that sharing one means nothing: articles, pronouns, particles, auxiliaries, and how questions are put.

English first; of other languages only those that are no meaningful word of English. What is common in one session for other
reasons is found by counting (see ``search``).
"""

from __future__ import annotations

_ENGLISH = """
a about above after again all almost already also although always am among an and another any anybody anyone anything are aren
around as ask asked at away
back be became because been before being below between both but by
came can cannot come could couldn
did didn do does doesn doing don done down during
each either else enough etc even ever every everybody everyone everything explain
few find first for from further
gave get gets getting give given go goes going gone got
had hadn has hasn have haven having he hello help her here hers herself hey hi him himself his how however
i if in instead into is isn it its itself
just
keep kind know known
last least less let lets like ll long look lot
made make makes many may maybe me mean means might more most much must my myself
need needs neither never new next no nobody none nor not nothing now
of off often ok okay old on once one ones only onto or other others our ours ourselves out over own
per perhaps please put
quite
rather re really right
said same say says see seem seen several shall she should shouldn show since so some somebody someone something sometimes
still such sure
take tell than thank thanks that the their theirs them themselves then there these they thing things think this those though
through thus till to together told too toward two
under until up upon us use used using
ve very via
want wants was wasn way ways we well went were weren what whatever when where whether which while who whole whom whose why will
with within without won would wouldn
yes yet you your yours yourself yourselves
"""

_OTHERS = """
aber als auch auf aus bei bitte das dass dein deine dem den denn der des dich dir doch durch ein eine einem einen einer eines er es euch
für gibt habe haben hatte ich ihr ihre ihm ihn im ist ja kann kein keine können mein meine mich mir mit muss nach nein nicht noch nur oder
ohne sein seine sich sie sind über um und uns unser vom von vor wann warum wenn wer werden wie wieder wir wird wo zu zum zur
au aux avec ce ceci cela ces cet cette comme comment dans de des donc du elle elles en est et était être eux il ils je la le les leur leurs
lui mais mes mon ne nos notre nous où par pas plus pourquoi quand que quel quelle qui quoi sa sans ses si sont sur ta te tes toi ton tous tout
très tu un une vos votre vous
al como con cual cuando cuál cómo de del desde donde dónde el ella ellos en entre era es esa ese eso esta está estas este esto ha hay la las
le lo los más mi mis muy ni nos para pero por porque que qué quien se sin sobre su sus también te tiene todo tu un una uno y ya yo
alla alle anche che chi ci cosa così da dal dalla dei del della delle di dove e è gli ha ho il io la le lei loro ma mi nel nella non o per
perché più quale quando quello questa questo se si sono su sul tu tutti un una
ao aos as até com como da das de dela dele do dos e ela ele em essa esse esta este eu foi isso isto já mais mas me meu minha muito na nas não no
nos o os ou para pela pelo por porque quando que quem se sem ser seu sua são também te tem um uma você
aan als bij dat de deze die dit een en er geen haar heb hebben heeft het hij hoe ik is jij jou kan maar met mijn naar niet nog of ook om onder
ons ook op over te tot uit van veel voor waar waarom wat we wel wie wij worden zijn zij zo zou
att av både då där de dem den det dig din du efter eller en ett från för ha hade han har hon hur i icke inte jag kan med men mig min mot
mycket när nu och om oss på sig sin ska som till upp ut vad var vara varför vem vi vid är över
ei ja jo että he hän joka jos kanssa koska kuin kuka kun me mikä miksi milloin minä missä miten mitä mutta myös ne niin nyt oli olla on ovat se
sinä sitä tai te tämä vai
и в во не что он на я с со как а то все она так его но да ты к у же вы за бы по только ее её мне было вот от меня еще ещё нет о из ему
когда даже ну ли если уже или быть был до вас нибудь вам ведь там потом себя ничего ей они тут где есть надо для мы их чем была без чего это этот
"""

_MEANT_IN_ENGLISH = frozenset(
    [
        "art",
        "brand",
        "die",
        "elf",
        "era",
        "fast",
        "gift",
        "gut",
        "hat",
        "hen",
        "hut",
        "kind",
        "le",
        "los",
        "man",
        "men",
        "mutter",
        "more",
        "no",
        "note",
        "of",
        "on",
        "order",
        "os",
        "over",
        "para",
        "per",
        "pied",
        "plus",
        "rat",
        "se",
        "sin",
        "son",
        "sort",
        "sui",
        "sur",
        "tag",
        "ton",
        "tot",
        "var",
        "vie",
        "vier",
        "war",
    ]
)

COMMON_WORDS: frozenset[str] = frozenset(_ENGLISH.split()) | (frozenset(_OTHERS.split()) - _MEANT_IN_ENGLISH)
"""As ``words`` writes them before accents are taken off."""
