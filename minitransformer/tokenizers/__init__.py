"""Tokenizers that others publish: their files read, their ids found, the files written back.

`PublishedTokenizer` is the way in; the others are its steps, in the order in which a text takes
them. Ids are those of the library `tokenizers`.

| module | what it holds |
| --- | --- |
| `published_tokenizer` | the tokenizer |
| `tokenizer_folder` | its files, of four kinds, as one |
| `special_tokens` | added tokens, and what is put around a text |
| `pre_tokenization` | from text to pieces |
| `unicode_patterns` | the patterns that cut, and classes of characters |
| `subwords` | from pieces to tokens and back |
| `unigram` | the most probable cut |
"""
