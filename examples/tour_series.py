# %% [markdown]
# # A tour for people with time series
#
# Series with their own time stamps, unequal lengths and gaps: tell classes apart, and forecast with quantiles. The
# estimators are used like those of scikit-learn, which they need.

# %%
import matplotlib.pyplot as plt
import numpy as np

from continua.estimators import ContinuaClassifier, ContinuaForecaster

STEPS = 120

# %% [markdown]
# ## Irregular series
#
# Each series has stamps of its own. NaN would mark a missing value.

# %%
draw = np.random.default_rng(0)


def series(speed):
    times = np.sort(draw.uniform(0, 10, draw.integers(15, 40)))
    return times, np.sin(speed * times + draw.uniform(0, 6)) + 0.1 * draw.normal(size=len(times))


kinds = ["slow", "fast"] * 40
made = [series(1.0 if kind == "slow" else 2.0) for kind in kinds]
times = [one[0] for one in made]
values = [one[1] for one in made]
_ = plt.figure(figsize=(6, 2.5))
for i in (0, 1):
    _ = plt.plot(times[i], values[i], ".-", label=kinds[i])
_ = plt.legend()

# %% [markdown]
# ## Classes

# %%
classifier = ContinuaClassifier(d=16, heads=2, depth=1, steps=STEPS, random_state=0, verbose=0)
_ = classifier.fit(values[:60], kinds[:60], times=times[:60])
right = classifier.score(values[60:], kinds[60:], times=times[60:])
print(f"right on series never seen: {right:.0%}")

# %% [markdown]
# Half of the points gone, nothing trained again:

# %%
thin_values = [v[::2] for v in values[60:]]
thin_times = [t[::2] for t in times[60:]]
print(f"right with half of the points: {classifier.score(thin_values, kinds[60:], times=thin_times):.0%}")

# %% [markdown]
# ## Forecasts with quantiles
#
# `fit(X)` without answers hides points of the series themselves and learns to fill them in, between the others and
# behind the end.

# %%
forecaster = ContinuaForecaster(d=16, heads=2, depth=1, steps=2 * STEPS, random_state=0, verbose=0)
_ = forecaster.fit(values[:60:2], times=times[:60:2])
asked = np.linspace(0.0, 12.0, 120)
low, middle, high = forecaster.predict_quantiles(values[60:61], times=times[60:61], at=asked)[0, :, 0].T
_ = plt.figure(figsize=(6, 2.5))
_ = plt.fill_between(asked, low, high, alpha=0.3, lw=0, label="quantiles 0.1 to 0.9")
_ = plt.plot(asked, middle, label="median")
_ = plt.plot(times[60], values[60], "k.", label="told")
_ = plt.legend()

# %% [markdown]
# ## Next
#
# The guide on irregular series reads a CSV file, keeps estimators, and says what is refused. `examples/series.py` has
# real data.
