"""The words of the grammar task as tables: English and German side by side, one line a word.

Nouns have *kinds*; adjectives and verbs say which kinds they go with, so that people read books
and animals do not. The module `inflection` reads the tables and bends the words, `grammar` builds
sentences of them.

Part of the grammar of chapter 8.
"""

# --- nouns: English, gender, German
#
# Plurals stand after a slash, English ones only if irregular. A weak noun looks like its plural
# in the accusative and dative: der Junge, den Jungen, dem Jungen.

NOUN_TABLES = {
    "person": """
        man/men          m Mann/Männer
        woman/women      f Frau/Frauen
        child/children   n Kind/Kinder
        boy              m Junge/Jungen weak
        girl             n Mädchen/Mädchen
        teacher          m Lehrer/Lehrer
        student          m Student/Studenten weak
        doctor           m Arzt/Ärzte
        friend           m Freund/Freunde
        brother          m Bruder/Brüder
        sister           f Schwester/Schwestern
        daughter         f Tochter/Töchter
        uncle            m Onkel/Onkel
        aunt             f Tante/Tanten
        queen            f Königin/Königinnen
        guest            m Gast/Gäste""",
    "animal": """
        dog              m Hund/Hunde
        cat              f Katze/Katzen
        horse            n Pferd/Pferde
        bird             m Vogel/Vögel
        bear             m Bär/Bären weak
        lion             m Löwe/Löwen weak
        mouse/mice       f Maus/Mäuse
        pig              n Schwein/Schweine""",
    "text": """
        book             n Buch/Bücher
        letter           m Brief/Briefe
        story            f Geschichte/Geschichten
        poem             n Gedicht/Gedichte
        newspaper        f Zeitung/Zeitungen""",
    "food": """
        apple            m Apfel/Äpfel
        pear             f Birne/Birnen
        egg              n Ei/Eier
        cake             m Kuchen/Kuchen
        potato/potatoes  f Kartoffel/Kartoffeln""",
    "drink": """
        milk             f Milch
        water            n Wasser
        coffee           m Kaffee
        tea              m Tee""",
    "garment": """
        coat             m Mantel/Mäntel
        shirt            n Hemd/Hemden
        jacket           f Jacke/Jacken
        hat              m Hut/Hüte""",
    "machine": """
        lamp             f Lampe/Lampen
        radio/radios     n Radio/Radios
        computer         m Computer/Computer""",
    "place": """
        garden           m Garten/Gärten
        house            n Haus/Häuser
        kitchen          f Küche/Küchen
        park             m Park/Parks
        city             f Stadt/Städte
        village          n Dorf/Dörfer""",
}

# --- adjectives: English, German (a stem after a slash), the kinds it goes with

ADJECTIVE_TABLE = """
    old          alt          person animal text garment machine place
    young        jung         person animal
    big          groß         animal garment machine place
    small        klein        person animal food garment place
    beautiful    schön        person animal text garment place
    tired        müde/müd     person animal
    hungry       hungrig      person animal
    happy        glücklich    person
    clever       klug         person animal
    lazy         faul         person animal
    famous       berühmt      person text place
    wild         wild         animal
    black        schwarz      animal garment machine
    white        weiß         animal garment
    red          rot          food garment machine
    new          neu          text garment machine
    expensive    teuer/teur   food drink garment machine
    long         lang         text
    interesting  interessant  person text
    fresh        frisch       food drink
    cold         kalt         food drink place
    sweet        süß          food drink
    dark         dunkel/dunkl garment place
"""

HELD_OUT_TABLE = """
    young teacher, tired boy, happy woman, famous student, old dog, big cat, black horse,
    wild bear, interesting book, long story, sweet apple, fresh milk, red coat, new lamp,
    beautiful garden
"""
HELD_OUT_PHRASES = frozenset(phrase.strip() for phrase in HELD_OUT_TABLE.split(","))
"""Adjective-noun pairs that training never shows; each of the words occurs in other pairs."""

# --- verbs: subjects > what the verb asks for; English; German
#
# A regular verb needs one form. A word after the English forms is a particle. "-" is a past left
# out because it looks like the present. "ist" marks a perfect with "sein".

VERB_TABLE = """
    person animal; sleep slept slept; schlafen schläft schlief geschlafen
    person animal; run ran run; laufen läuft lief ist gelaufen
    person animal; swim swam swum; schwimmen schwimmt schwamm ist geschwommen
    person animal; fall fell fallen asleep; ein|schlafen schläft schlief ist geschlafen
    person animal; wake woke woken up; auf|wachen wacht wachte ist gewacht
    animal; jump; springen springt sprang ist gesprungen
    person; laugh; lachen
    person; sing sang sung; singen singt sang gesungen
    person; dance; tanzen
    person; cry; weinen
    person; travel; reisen reist reiste ist gereist
    person; arrive; an|kommen kommt kam ist gekommen

    person animal > acc person animal; see saw seen; sehen sieht sah gesehen
    person animal > acc person animal; hear heard heard; hören
    person > acc person place; know knew known; kennen kennt kannte gekannt
    person > acc person animal; love; lieben
    person > acc person; visit; besuchen besucht besuchte besucht
    person > acc person; invite; ein|laden lädt lud geladen
    person > acc person; call; an|rufen ruft rief gerufen
    person animal > acc person animal; look for; suchen
    animal > acc animal; chase; jagen
    person > acc animal; feed fed fed; füttern
    person > acc animal garment; wash; waschen wäscht wusch gewaschen
    person > acc person animal place; draw drew drawn; zeichnen
    person > acc text; read - read; lesen liest las gelesen
    person > acc text; write wrote written; schreiben schreibt schrieb geschrieben
    person > acc text food garment machine; buy bought bought; kaufen
    person > acc food; eat ate eaten; essen isst aß gegessen
    animal > acc food; eat ate eaten; fressen frisst fraß gefressen
    person animal > acc drink; drink drank drunk; trinken trinkt trank getrunken
    person > acc garment; wear wore worn; tragen trägt trug getragen
    person > acc person text; forget forgot forgotten; vergessen vergisst vergaß vergessen
    person > acc machine; turn on; an|machen
    person > acc machine; repair; reparieren repariert reparierte repariert

    person > dat person animal; help; helfen hilft half geholfen
    person > dat person; thank; danken
    person > dat person; answer; antworten
    person animal > dat person animal; follow; folgen folgt folgte ist gefolgt
    person > dat person; trust; vertrauen vertraut vertraute vertraut
    person > dat person; listen to; zu|hören

    person > dat person, acc food garment text; give gave given; geben gibt gab gegeben
    person > dat person, acc animal garment place; show showed shown; zeigen zeigt zeigte gezeigt
    person > dat person, acc text; send sent sent; schicken
    person > dat person, acc food drink text; bring brought brought; bringen bringt brachte gebracht
    person > dat person, acc text; read - read; vor|lesen liest las gelesen

    person > auf acc person animal; wait for; warten
    person > an acc person place; think thought thought of; denken denkt dachte gedacht
    person > von dat person animal place; dream of; träumen
    person > über acc person animal; laugh at; lachen
    person animal > mit dat person animal; play with; spielen
    person > mit dat person; talk to; sprechen spricht sprach gesprochen
    person animal > in acc place; go went gone into; gehen geht ging ist gegangen
    person > in dat place; live in; wohnen
    person > in dat place; work in; arbeiten

    person animal text food drink garment machine place > adj; be was been; sein ist war ist gewesen

    person > that; know knew known; wissen weiß wusste gewusst
    person > that; say said said; sagen
    person > that; believe; glauben
    person > that; hope; hoffen
    person animal > that; see saw seen; sehen sieht sah gesehen
    person > that; forget forgot forgotten; vergessen vergisst vergaß vergessen
"""

PRESENT = {  # first person, third person, plural, where the rules do not hold
    "be": ["am", "is", "are"],
    "do": ["do", "does", "do"],
    "have": ["have", "has", "have"],
    "haben": ["habe", "hat", "haben"],
    "sein": ["bin", "ist", "sind"],
    "werden": ["werde", "wird", "werden"],
    "wissen": ["weiß", "weiß", "wissen"],
}

# --- small words
#
# A determiner: English, German, its own endings, those of an adjective after it; the numbers it
# goes with (s, p, and m for mass nouns); where it may stand. "def" may stand anywhere, the others
# not in negated clauses; "bare" and "no" only in the last object, "no" without a preposition.

DETERMINER_TABLE = """
    the         d     article weak    spm def
    this/these  dies  strong  weak    spm def
    my          mein  ein     mixed   spm def
    his         sein  ein     mixed   spm def
    our         unser ein     mixed   spm def
    a           ein   ein     mixed   s   any
    every       jed   strong  weak    s   any
    two         zwei  none    strong  p   any
    many        viel  strong  strong  p   any
    no          kein  ein     mixed   sm  no
    -           -     none    strong  pm  bare
"""

ENDINGS = {  # of masculine, feminine, neuter, plural: nominative, accusative, dative
    "article": "er en em / ie ie er / as as em / ie ie en",  # der, den, dem
    "strong": "er en em / e e er / es es em / e e en",  # dieser, diesen, diesem
    "ein": "- en em / e e er / - - em / e e en",  # ein, einen, einem
    "weak": "e en en / e e en / e e en / en en en",  # der alte, den alten, dem alten
    "mixed": "er en en / e e en / es es en / en en en",  # ein alter, einen alten, einem alten
    "none": "- - - / - - - / - - - / - - -",
}

PRONOUN_TABLE = """
    I    me   ich mich mir   1s
    he   him  er  ihn  ihm   3s
    she  her  sie sie  ihr   3s
    we   us   wir uns  uns   p
    they them sie sie  ihnen p
"""

ADVERB_TABLE = """
    today; heute; present past perfect future
    now; jetzt; present
    sometimes; manchmal; present past; front
    yesterday; gestern; past
    tomorrow; morgen; future
    in the evening; am Abend; present past future
    perhaps; vielleicht; present past perfect future; front
    then; dann; present past future; front
"""

CONJUNCTIONS = {
    "present": {"because": "weil", "although": "obwohl", "when": "wenn", "while": "während"},
    "past": {"because": "weil", "although": "obwohl", "when": "als", "while": "während"},
    "perfect": {"because": "weil", "although": "obwohl"},
    "future": {"because": "weil", "although": "obwohl", "when": "wenn"},
}
"""What may begin a clause beside a main clause of each tense."""
