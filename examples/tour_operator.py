# %% [markdown]
# # A tour for people with functions
#
# Learn the solution operator of Burgers' equation from pairs of functions on one grid, then ask it on other grids and
# at random points. Under a minute, data included.

# %%
import matplotlib.pyplot as plt
import torch

import continua as ct
from continua.data import burgers_pairs
from continua.tasks import Functions

STEPS = 150

# %% [markdown]
# ## Data
#
# `Pairs` are functions sampled on a uniform grid of their domain: here the start of a flow on a circle and its state
# one unit of time later. Your own arrays become pairs in the same way.

# %%
fine = burgers_pairs(240, n=256, viscosity=0.05)
coarse = fine.every(4)  # the same functions on 64 points
task = Functions(coarse.part(slice(0, 200)), coarse.part(slice(200, None)), batch=20)
print(coarse.inputs.shape, coarse.axis)

# %%
_ = plt.figure(figsize=(6, 2.5))
_ = plt.plot(coarse.points[:, 0], coarse.inputs[0, :, 0], label="start")
_ = plt.plot(coarse.points[:, 0], coarse.outputs[0, :, 0], label="end")
_ = plt.legend()

# %% [markdown]
# ## Model and training
#
# The token axis of this Transformer is the circle itself. Its loss is the relative error in H¹, against the measure.

# %%
_ = torch.manual_seed(0)
model = ct.zoo.function_map(ct.Circle(), 64, at=ct.at(d=32, h=2, m=32, z=3), modes=16)
done = ct.fit(
    model,
    task,
    steps=STEPS,
    evaluate_every=STEPS,
    optimiser=ct.optim.ByRole(ct.optim.AdamW(4e-3), kernel=ct.optim.Muon(0.02)),
    watch=lambda progress: None,
)
print(f"relative error on functions never seen: {task.evaluate(model).main:.3f}")

# %% [markdown]
# ## Other grids
#
# The same weights on four times as many points, and on 100 random ones: nothing is trained again.

# %%
held_out = fine.part(slice(200, None))
print(f"256 points instead of 64: {task.errors(model, held_out).mean():.3f}")

# %%
draw = torch.Generator().manual_seed(0)
places = torch.rand(100, generator=draw).sort().values
nearest = (places * 256).long()  # points of the fine grid, in no order that a grid has
chosen = nearest.unique()
x = held_out.points[chosen, 0]
u = held_out.inputs[:1, chosen]
with torch.no_grad():
    answer = model(ct.Batch(u, times=x))
_ = plt.figure(figsize=(6, 2.5))
_ = plt.plot(held_out.points[:, 0], held_out.outputs[0, :, 0], lw=1, label="truth")
_ = plt.plot(x, answer[0, :, 0], ".", label="answer at random points")
_ = plt.legend()

# %% [markdown]
# ## Next
#
# `continua fit burgers`, `darcy` and `navier-stokes` train full models; the guides on PDE pairs and on functions show
# holes, warped grids, two dimensions and files of your own.
