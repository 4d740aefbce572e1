"""The data of tasks: what the book's models are trained on.

| module | chapter | what it holds |
| --- | --- | --- |
| `number_words` | 9 | the main job: number words, English to German |
| `grammar` | 8 | English sentences with their German, from a grammar |
| `inflection` | 8 | the words of that grammar and their forms |
| `span_corruption` | 13 | texts with gaps, and what fills them |
| `text_to_text` | 13 | six tasks as text to text, told apart by a prefix |
| `multi30k` | 8 | descriptions of pictures in three languages, downloaded |
| `recipes` | | which models are trained on them, and how |
"""
