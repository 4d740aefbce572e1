# %% [markdown]
# ## The shortest way to a good model
#
# The ablations change one thing and keep the length of training. Now turn it around: keep the goal, and ask for the least time **from random weights to 99.5 % of held-out number words right, on one thread of a processor.**
#
# A race needs rules, or luck wins it.
#
# - *The end counts.* The number of steps is decided before. The target must be reached where the schedule ends, in the mean of five seeds. The best moment of a curve is a lucky moment.
# - *The clock is a ratio.* Seconds depend on the machine, and on what else runs there. So steps of the baseline are timed between the steps of each run, and its cost is counted in steps of the baseline.
# - *The baseline is what one would otherwise use*: `torch.nn.Transformer`, Adam, chapter 9's settings, in as few steps as it can do with.
# - *Records are small diffs.* Each changes a little of the one before.
#
# `benchmarks/speedrun_records.py` holds the recipes, and `benchmarks/speedrun.py` trains them. A recipe without five seeds is a candidate.

# %% tags=["hide-input"]
def lines_of(name):
    """The runs that a program in benchmarks/ has left, here or at the repository; or none."""
    file = Path("benchmarks", f"{name}.jsonl")
    here = Path(mt.__file__).parents[1] / file
    links = dict(link.split(", ") for link in metadata("minitransformer").get_all("Project-URL"))
    try:
        if here.exists():
            text = here.read_text(encoding="utf-8")
        else:
            with urlopen(f"{links['Repository']}/raw/main/{file.as_posix()}", timeout=20) as page:
                text = page.read().decode()
    except OSError:
        print("The results are not here, and cannot be fetched: no table.")
        return []
    return [json.loads(line) for line in text.splitlines()]


def mean_of(runs, what):
    """The mean of a number over runs; NaN where there are none."""
    return sum(run[what] for run in runs) / len(runs) if runs else math.nan


def races_of(task, kind):
    """The runs of each record, in the order of the list; of older recipes none."""
    found = {}
    for run in reversed(lines_of("speedrun")):
        if (run["task"], run["kind"]) == (task, kind):
            same = found.setdefault((run["number"], run["record"]), [run])
            if run is not same[0] and run["plan"] == same[0]["plan"]:
                same.append(run)
    return {name: sorted(found[n, name], key=lambda run: run["seed"]) for n, name in sorted(found)}


race = races_of("number-words", "record")
print(f"{'record':<24} {'seeds':>5} {'steps':>5} {'a step':>6} {'cost':>5} {'right':>7}")
for name, runs in race.items():
    steps, cost, score = runs[0]["steps"], mean_of(runs, "cost"), mean_of(runs, "score")
    print(f"{name:<24} {len(runs):>5} {steps:>5} {cost / steps:>6.2f} {cost:>5.0f} {score:>7.2%}")
    if len(runs) >= 5:
        assert score >= 0.995, name
print("a step and cost: in steps of the baseline")
counted = [mean_of(runs, "cost") for runs in race.values() if len(runs) >= 5]
assert counted == sorted(counted, reverse=True), "each record is cheaper than those before it"

# %% [markdown]
# A cost is a number of steps times what a step costs. The diffs pull at both.
#
# - **The package** makes a step cheaper: nothing is computed on padding, and dropout stands only where the paper has it.
# - **Better tokens** do both: more merges, and a German number is less than half as many tokens (below).
# - **No dropout.** It protects from learning by heart. A run that sees each pair a few times at most cannot.
# - **Muon** makes a step dearer and should need far fewer: all directions of a matrix are learned at one pace (second reading below).
# - **A linear end.** The noise of batches keeps the weights from settling until the rate falls, so it must fall. But in its last tenth a cosine is below 3 % of its peak, where little is learned; a line is below 10 %.
# - **Half batches** make a step cheaper, as long as a gradient of few pairs points nearly the same way. It pays if it takes less than twice the steps. What does not shrink with the batch is the optimiser's own cost.
#
# %%
texts = [pair.tgt for pair in mt.number_words(num_train=2_000, num_held_out=1)["train"]]
lengths = {}
for size in (305, 400):
    subwords = mt.BPETokenizer.train(texts, size)
    lengths[size] = sum(len(subwords.encode(text)) for text in texts) / len(texts)
    ids = subwords.encode("siebentausendvierhundertsechsundachtzig")
    print(f"{size}: {lengths[size]:.1f} tokens a number,", *(subwords.decode([i]) for i in ids))
assert lengths[400] < 0.55 * lengths[305]

# %% [markdown]
# The longer tokens are no longer the parts that carry the meaning. Whether that hurts, the held-out numbers say.
#
# All of these reasons are plausible, and plausible is what one says before measuring. So the program can also train each diff *alone* (added to the package with the baseline's recipe) and *left out* (of the last record), in equally many steps:

# %% tags=["hide-input"]
alone, without = (races_of("number-words", kind) for kind in ("alone", "without"))
print(f"{'':<24} {'alone: right':>13} {'nats':>6} {'left out: right':>16} {'nats':>6}   seeds")
for name in alone:
    both = alone[name], without.get(name, [])
    cells = [f"{mean_of(runs, 'score'):.1%}" for runs in both]
    nats = [f"{mean_of(runs, 'nats'):.2f}" for runs in both]
    print(f"{name:<24} {cells[0]:>13} {nats[0]:>6} {cells[1]:>16} {nats[1]:>6}   {len(both[0])}")

# %% mystnb={"image": {"alt": "One falling line for each recipe: held-out loss of a number in nats, against the cost in steps of the baseline, both on logarithmic axes. Recipes further down the list end further to the left."}} tags=["hide-input"]
STYLES_OF_RECORDS = ["o-", "s--", "^-", "v--", "D-", "P--", "X-"]
if race:
    figure, ax = plt.subplots(figsize=(5.8, 3.6))
    for name, style in zip(race, STYLES_OF_RECORDS, strict=False):
        run = race[name][0]
        costs = [seconds / run["baseline_step"] for _, seconds, _ in run["looks"]]
        ax.loglog(costs, [nats for *_, nats in run["looks"]], style, markersize=4, label=name)
    ax.set(xlabel="cost, in steps of the baseline", ylabel="held-out loss of a number (nats)")
    ax.legend(fontsize=8.5)
    plt.show()

# %% [markdown]
# The loss is that of a whole number, all its tokens together, so that vocabularies can be compared. The first seed of each recipe is drawn.
#
# What bounds such a race? A step cannot cost less than its products. The steps cannot be fewer than it takes to have seen each word in each place a few times. And nothing here says that the same list wins on another task, on other hardware, or for a larger model: Muon's products grow with the width, not with the batch. A record is a statement about one task and one clock.
#
# To break one: add a `Record` with your diff, run `python benchmarks/speedrun.py number-words --record N`, and send the recipe with its five rows.
#
# %% [markdown]
# ### Second reading: Muon, or why all directions should count the same
#
# A gradient $G$ of a matrix $W$ is a sum of singular directions, $G = \sum_i \sigma_i\, u_i v_i^\top$. A few $\sigma_i$ are large: those of what is common in the batch, frequent tokens above all. The others are small, and what is rare is in them. A step along $G$ learns the common and hardly moves the rest.
#
# How far *should* a step $D$ go in each direction? The loss changes by about $\langle G, D\rangle$. We want that as low as possible, but no output of the layer may move too far: $\lVert D x\rVert \le \eta\, \lVert x\rVert$ for every input $x$. That bounds the largest singular value of $D$, and nothing else. Now
#
# $$\langle G, D\rangle = \sum_i \sigma_i\; u_i^\top D\, v_i \;\ge\; -\eta \sum_i \sigma_i,$$
#
# because $u_i$ and $v_i$ have length 1. The bound is reached by $D = -\eta\, U V^\top$: the singular vectors of the gradient, with *all singular values alike*. (Bound every entry of $D$ instead, and the same question gives $-\eta$ times the sign of each entry: nearly Adam. Bound the sum of squares, and it gives the gradient itself. The norm is the choice; see [Bernstein and Newhouse (2024)](https://arxiv.org/abs/2409.20325).)
#
# A singular value decomposition at each step would cost too much. But an odd polynomial of a matrix acts on its singular values alone: with $A = X X^\top$,
#
# $$(a I + b A + c A^2)\, X = U\, (a S + b S^3 + c S^5)\, V^\top .$$
#
# Divide by the norm, so that all $\sigma \le 1$, and repeat a polynomial that lifts small $\sigma$ quickly and keeps large ones near 1. That is the Newton-Schulz iteration, three products of matrices a step. The coefficients of [Muon (Jordan et al., 2024)](https://kellerjordan.github.io/posts/muon/) have the slope 3.4 at zero, so that small values grow fast; in exchange they never settle at 1, but wander about it. For a direction of an update that is near enough.

# %% tags=["nbval-ignore-output"]
def newton_schulz(x, steps=5):
    """The same singular vectors, and singular values of about 1; x is wide, or square."""
    x = x / x.norm()
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


pairs = mt.number_words(num_train=256, num_held_out=1)["train"]
english = mt.WordTokenizer.train(pair.src for pair in pairs)
german = mt.BPETokenizer.train((pair.tgt for pair in pairs), 300)
sizes = {"d_model": 64, "num_heads": 4, "d_ff": 128, "norm_first": True, "max_len": 64}
sizes |= {"num_encoder_layers": 2, "num_decoder_layers": 2}
config = mt.TransformerConfig(english.vocab_size, german.vocab_size, **sizes)
model = mt.Transformer(config, torch.Generator().manual_seed(0))
model.loss(*mt.collate(mt.encode_pairs(pairs, english, german))).backward()
gradient = model.decoder.layers[0].feed_forward.w_1.weight.grad.double().T  # (d, f), wide
print("singular values of a gradient, relative to the largest:")
print(f"{'':<16} {'10th':>6} {'median':>7} {'55th':>6}   of {min(gradient.shape)}")
for name, matrix in (
    ("the gradient", gradient),
    ("after 1 step", newton_schulz(gradient, 1)),
    ("after 3 steps", newton_schulz(gradient, 3)),
    ("after 5 steps", newton_schulz(gradient)),
):
    values = torch.linalg.svdvals(matrix)
    tenth, middle, low = (values[place] / values[0] for place in (9, 31, 54))
    print(f"{name:<16} {tenth:>6.2f} {middle:>7.2f} {low:>6.2f}")
    if matrix is gradient:
        assert middle < 0.06
assert values[0] < 1.25
assert middle > 0.5
u, _, vh = torch.linalg.svd(gradient, full_matrices=False)
turned = u.T @ newton_schulz(gradient) @ vh.T
assert (turned - turned.diagonal().diag()).abs().max() < 1e-6
print("the singular vectors are the same")

# %% [markdown]
# What Muon orthogonalises is not one gradient but its running mean (with Nesterov's look ahead), as the noise of one batch has small directions too. Embeddings, norms and biases keep Adam: a row of a table is found by its token, not by a product. And the price is real. On a processor the 32 matrices of this model are so small that 32 times 15 products are mostly calls; `benchmarks/muon.py` stacks matrices of one shape, and makes one batched product for each shape.
#
# ## Exercises
#
# ### Exercise: what five steps do to one number (easy)
#
# Newton-Schulz acts on each singular value alone. Iterate $\sigma \leftarrow a\sigma + b\sigma^3 + c\sigma^5$ for a few $\sigma$ between 0.001 and 1. Which does it lift above a half in five steps? Check with a diagonal matrix.

# %% cellView="form" tags=["hide-cell", "solution"]
# @title Solution: what five steps do to one number
begun = torch.tensor([1.0, 0.5, 0.1, 0.03, 0.01, 0.003, 0.001], dtype=torch.float64)
begun = begun / begun.norm()
sigma = begun.clone()
for _ in range(5):
    sigma = 3.4445 * sigma - 4.7750 * sigma**3 + 2.0315 * sigma**5
for before, after in zip(begun.tolist(), sigma.tolist(), strict=True):
    print(f"{before:.4f} → {after:.2f}")
found = newton_schulz(begun.diag()).diagonal()
torch.testing.assert_close(found, sigma)
lifted = begun[sigma > 0.5]
assert len(lifted) == 6
assert 0.002 < lifted.min() < 0.003
# Near zero a step multiplies by 3.4445, five by about 485: what begins below a thousandth of the
# norm is still small afterwards. Such directions are mostly noise, and it is as well.

# %% [markdown]
# ### Exercise: a problem with long and short directions (medium)
#
# Learn a matrix $W$, $16 \times 16$, with $W X = Y$, where the singular values of $X$ fall evenly on a logarithmic scale from 1 to 0.01. Take 100 steps of gradient descent, and 100 along `newton_schulz` of the gradient, both with a rate that falls along a line to zero, each at the best of a few rates. How far is each $W$ from the true one, and why?

# %% cellView="form" tags=["hide-cell", "solution"]
# @title Solution: a problem with long and short directions
generator = torch.Generator().manual_seed(16)
left, right, truth = torch.randn(3, 16, 16, dtype=torch.float64, generator=generator)
left, right = torch.linalg.qr(left)[0], torch.linalg.qr(right)[0]
inputs = left * torch.logspace(0, -2, 16, dtype=torch.float64) @ right


def distance(direction, rate, steps=100):
    """How far W is from the truth after some steps, relative to where it began."""
    weight = torch.zeros_like(truth)
    for step in range(steps):
        gradient = (weight - truth) @ inputs @ inputs.T
        weight = weight - rate * (1 - step / steps) * direction(gradient)
    return ((weight - truth).norm() / truth.norm()).item()


best = {}
for name, direction, rates in (
    ("gradient", lambda gradient: gradient, (0.25, 0.5, 1.0, 1.5, 1.9)),
    ("newton_schulz", newton_schulz, (0.03, 0.1, 0.2, 0.3, 0.5)),
):
    best[name] = min(distance(direction, rate) for rate in rates)
    print(f"{name:<14} {best[name]:.2f} of the distance is left")
assert best["newton_schulz"] < 0.7 * best["gradient"]
# The gradient along a short direction of X is shorter by the square of its singular value: a rate
# that the longest direction allows hardly moves it in 100 steps. With equal singular values every
# direction moves at the same pace.
