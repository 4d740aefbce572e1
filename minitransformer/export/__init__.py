"""Out to the engines: a trained model as files that other programs run, faster than this package.

    mt.export.to_ctranslate2(translator, "numbers-ctranslate2")

Each function takes a `Translator`, a `TextGenerator` or a model alone, and a new folder, and what
comes out computes what the model computes: tests compare ids and scores. What an engine does
not have is refused by its name. The page *Use it* says how each folder is loaded and run, and
`python -m minitransformer export` calls the same functions. Libraries that only an export needs
are installed by `pip install 'minitransformer[export]'`, and imported when it is called.

| module | what it writes |
| --- | --- |
| `ctranslate2` | layers by name, for CTranslate2; matrices in int8 too |
| `onnx` | graphs for ONNX Runtime |
| `torch_export` | graphs for PyTorch, without this package |
| `hugging_face` | what the library transformers reads, where it has such a model |
| `folder` | nothing: it checks, and makes the folder whole or not at all |
"""

from minitransformer.export.ctranslate2 import to_ctranslate2
from minitransformer.export.hugging_face import to_transformers
from minitransformer.export.onnx import to_onnx
from minitransformer.export.torch_export import to_torch

__all__ = ["to_ctranslate2", "to_onnx", "to_torch", "to_transformers"]
