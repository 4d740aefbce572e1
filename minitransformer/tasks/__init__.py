"""The data of tasks: what the book's models are trained on.

| module | chapter | what it holds |
| --- | --- | --- |
| `number_words` | 9 | the main job: number words, English to German |
| `grammar` | 8 | English sentences with their German, from a grammar |
| `noun_phrases`, `inflection`, `lexicon` | 8 | the parts of that grammar |
| `span_corruption` | 13 | texts with gaps, and what fills them |
| `text_to_text` | 13 | six tasks as text to text, told apart by a prefix |
| `multi30k` | 8 | descriptions of pictures in three languages, downloaded |
| `jobs` | | what the command line trains on them, and how |
"""
