# %% [markdown]
# # A tour of the lab
#
# Attention moves tokens. Put them on a circle as particles, let softmax attention act, and watch them gather in
# clusters; compare with what the theory says.

# %%
import matplotlib.pyplot as plt
import torch

import continua as ct
from continua.lab import Particles, SelfAttention, clusters, dynamics, energies, growth_rates, k_max, simulate

TOKENS = 300
UNTIL = 16.0

# %% [markdown]
# ## Tokens as particles
#
# Each token is a unit vector that is pulled towards the others, by weights that are a softmax of β times their cosines.

# %%
start = Particles.uniform(TOKENS, d=2, generator=torch.Generator().manual_seed(0))
run = simulate(SelfAttention(beta=9.0), start, until=UNTIL, save=60)
angles = torch.atan2(run.x[..., 1], run.x[..., 0])
_ = plt.figure(figsize=(6, 3))
_ = plt.plot(run.times, angles, ",", color="tab:blue")
_ = plt.xlabel("time")
_ = plt.ylabel("angle")

# %% [markdown]
# ## How many clusters?
#
# Ripples of an even spread grow at rates that are known in closed form; the fastest one has about as many waves as
# there will be clusters.

# %%
found = clusters(run)
print(f"clusters at the end: {found.count[-1].item()}, waves of the fastest mode: {k_max(9.0)}")

# %%
_ = plt.figure(figsize=(6, 2.5))
_ = plt.plot(growth_rates(9.0, modes=12), "o-")
_ = plt.xlabel("waves around the circle")
_ = plt.ylabel("growth rate")

# %% [markdown]
# ## Energy
#
# Along the flow an energy never falls. Plateaus are clusters at rest, steps are mergers.

# %%
along = energies(run)
print(f"the energy never falls: {bool((along.diff() > -1e-6).all())}")
_ = plt.figure(figsize=(6, 2.5))
_ = plt.plot(run.times, along)
_ = plt.xlabel("time")
_ = plt.ylabel("energy")

# %% [markdown]
# ## The same question to a model
#
# `dynamics` asks any Transformer how its tokens move through depth: cosines, energy, effective rank, clusters. Here an
# untrained BERT; `ct.from_hf(folder)` would be a real one.

# %%
_ = torch.manual_seed(0)
model = ct.zoo.bert(vocab=64, d=32, heads=4, depth=4, context=16)
for row in dynamics(model, torch.arange(1, 13)[None]).rows():
    print(f"depth {row['z']:.0f}: mean cosine {row['cosine']:.2f}, effective rank {row['rank']:.1f}")

# %% [markdown]
# ## Next
#
# `continua simulate circle --beta 9 --n 2000` makes numbers, pictures and a film; the gallery shows spheres, causal
# attention, mean fields and phase diagrams.
