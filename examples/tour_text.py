# %% [markdown]
# # A tour for people with text
#
# Train one small language model, then run it at several sizes. Everything is made on this machine from text that comes
# with Python, in under a minute.

# %%
import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import continua as ct
from continua.data import Characters
from continua.data.corpus import cut
from continua.tasks import Text

STEPS = 240

# %% [markdown]
# ## Text and tokenizer
#
# A corpus is a text cut into a part to learn from and a part that is held out. The tokenizer here has a token for each
# character; `BytePairs` would learn pairs.

# %%
corpus = cut("argparse", Path(argparse.__file__).read_text(encoding="utf-8"))
tokenizer = Characters.of(corpus.train + corpus.validation)
task = Text(corpus, tokenizer, context=64, batch=16, limit=8)
print(f"{len(corpus.train):,} characters to learn from, {tokenizer.size} tokens")

# %% [markdown]
# ## An elastic model
#
# `ct.zoo.gpt2` is an ordinary GPT-2. `ct.elastic` makes its weights functions of nested nodes, so that narrower
# and shallower models are contained in it. On its own size nothing has changed.

# %%
_ = torch.manual_seed(0)
model = ct.elastic(ct.zoo.gpt2(vocab=tokenizer.size, d=64, heads=4, depth=4, context=64))
print(model.native)

# %% [markdown]
# ## Train
#
# In the second part of the training other sizes are drawn at each step, and learn to answer as the native size does.

# %%
done = ct.fit(
    model,
    task,
    steps=STEPS,
    evaluate_every=STEPS // 2,
    elastic=ct.Elastic(),
    optimiser=ct.optim.ByRole(ct.optim.AdamW(4e-3)),
    watch=lambda progress: None,
)
losses = [row["loss"] for row in done.history]
_ = plt.figure(figsize=(6, 2.5))
_ = plt.plot(losses)
_ = plt.xlabel("step")
_ = plt.ylabel("loss (nats a character)")

# %% [markdown]
# ## One checkpoint, several sizes
#
# `model.at` reads the same weights on another grid. The held-out loss of each:

# %%
sizes = {"native": {}, "half the width": {"d": 32}, "half the heads": {"h": 2}, "half the depth": {"z": 2}}
for name, size in sizes.items():
    print(f"{name:15} {task.evaluate(model.at(**size)).main:.3f}")

# %% [markdown]
# For use, hold a view: its weights are read once, and it is as quick as its size promises.

# %%
small = model.at(d=32, z=2).held()
prompt = tokenizer.encode("def ")[None]
ids = ct.generate(small, prompt, tokens=60, sampling=ct.Sample(0.7), generator=torch.Generator().manual_seed(0))
print(tokenizer.decode(ids[0]))

# %% [markdown]
# ## Next
#
# `continua fit elastic` does all of this with a larger model, checkpoints and resuming. The guides on your own text, on
# elastic models and on runs go on from here.
