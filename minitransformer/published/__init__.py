"""What others publish: configurations, weights and tokenizers, as files of a folder.

The classes that are loaded are in `models`. Nothing is unpickled, and what is not
known is refused by its name.

| module | chapter | what it holds |
| --- | --- | --- |
| `weights` | 12 | published weights, in one file or in shards |
| `beside` | 12 | the tokenizers in a published model's folder |
| `config` | 12 | what every `config.json` has |
| `bert_config` | 11 | BERT's, RoBERTa's, DistilBERT's |
| `gpt2_config` | 12 | GPT-2's |
| `llama_config` | 12 | Llama's, Mistral's, Qwen's |
| `rotary_scaling` | 12 | the rotary positions that they ask for |
| `t5_config` | 13 | T5's |
| `marian_config` | 13 | Marian's and BART's |
| `vit_config` | 14 | ViT's |
| `tokenizer`, `tokenizer_files` | | the tokenizers, by the libraries that made them |
"""
