"""The eight bugs of the project: which law catches each, and how to repair it."""

REPAIRS = {
    "attention was scaled by the width of the model": [
        ("model.py", "math.sqrt(self.d_model)", "math.sqrt(query.size(-1))"),
    ],
    "dropout worked in evaluation too": [
        ("model.py", "F.dropout(x, self.dropout)", "F.dropout(x, self.dropout, self.training)"),
    ],
    "the tied weights were a copy": [
        (
            "model.py",
            "nn.Parameter(self.embedding.weight.detach().clone())",
            "self.embedding.weight",
        ),
    ],
    "cached positions began again at 0": [
        ("model.py", "        x = self.embed(tgt)\n", ""),
        (
            "model.py",
            "        size = (tgt.size(1)",
            "        x = self.embed(tgt, seen)\n        size = (tgt.size(1)",
        ),
    ],
    "generation in batches attended to padding": [
        ("generate.py", "memory, _ = ", "memory, memory_mask = "),
        ("generate.py", "memory, cache=cache", "memory, memory_mask, cache"),
    ],
    "the loss was averaged over padding": [
        ("train.py", "losses.mean()", "losses.sum() / (targets != PAD).sum()"),
    ],
    "the best weights were a reference to the last": [
        ("train.py", "import random\n", "import random\nfrom copy import deepcopy\n"),
        (
            "train.py",
            "                best = model.state_dict()",
            "                best = deepcopy(model.state_dict())",
        ),
    ],
    "pairs to validate on occurred in training": [
        (
            "data.py",
            "    texts = [random_text(rng) for _ in range(num_train + num_valid)]\n"
            "    pairs = [(text, text[::-1]) for text in texts]\n"
            "    return pairs[:num_train], pairs[num_train:]",
            "    texts: dict[str, None] = {}  # each once, in order\n"
            "    while len(texts) < num_train + num_valid:\n"
            "        texts[random_text(rng)] = None\n"
            "    pairs = [(text, text[::-1]) for text in texts]\n"
            "    return pairs[:num_train], pairs[num_train:]",
        ),
    ],
}
"""For each bug, in the words of the check, what to replace by what in which file."""
