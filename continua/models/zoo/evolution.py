"""A learned equation: depth is time, a step of the solver is a step in time."""

from dataclasses import replace

from continua.axes import Axis, Circle, Rule, default_rule, factor_rules, factors
from continua.errors import ConfigError
from continua.fields import ByBasis
from continua.flow import RK4, Fixed
from continua.models.build import discrete_axes, smooth_bases
from continua.models.embed import Channels
from continua.models.latent import ChannelReadout, Latent
from continua.models.transformer import Transformer
from continua.operators import Operator, Parts, SymbolProducts, SymbolTransport
from continua.settings import Positive, Size, checked


@checked
def evolution(
    axis: Axis,
    nodes: int | Rule,
    *,
    spreads: tuple[Positive, ...] = (1.0,),
    out: Size = 1,
    modes: Size | None = None,
    products: Size = 4,
    steps: Size = 6,
    conserving: bool = False,
    beside: tuple[Operator, ...] = (),
) -> Transformer:
    """u(·, 0) ↦ u(·, 1) of ∂u/∂t = Σ_j P_j(∂)[(A_j(∂)u)(B_j(∂)u)] + L(∂)u around circles: an equation that is learned.

    The state lives on a lattice of ``nodes`` along each direction, is observed and answered anywhere (``Latent``), and
    has a channel for each of ``spreads``, by which values are divided; the first ``out`` of them move, the others (a
    force) are read. ``modes`` is the greatest wave of products, that of the lattice unless it is given. Time is depth:
    ``steps`` of Runge and Kutta make one unit of it, ``model.at(z=Adaptive(Tsit5(), rtol=1e-3))`` takes as many
    as a tolerance asks for. ``beside`` adds further parts to the slope. A ``conserving`` equation has transport and
    damping in place of products (``SymbolTransport``): what it carries along cannot grow, so roll-outs stay bounded.

    >>> import torch
    >>> from continua.axes import Circle
    >>> model = evolution(Circle(), 16, steps=2)
    >>> u = torch.sin(2 * torch.pi * torch.arange(16) / 16)[None, :, None]
    >>> bool((model(u) - u).abs().max() < 1e-6)  # a new one changes nothing
    True
    """
    lines = factors(axis)
    if out > len(spreads):
        raise ConfigError(f"there are {len(spreads)} channels", got=out, remedy="Give a spread for each channel.")
    if not all(isinstance(line, Circle) for line in lines):
        remedy = "Use Circle() or a Product of circles; zoo.function_map knows domains with edges."
        raise ConfigError("equations are learned around circles", got=axis, remedy=remedy)
    rule = default_rule(axis, nodes**axis.dim) if isinstance(nodes, int) else nodes
    shown = tuple((each.n - 1) // 2 for each in factor_rules(rule))
    waves = shown if modes is None else tuple(min(modes, most) for most in shown)
    chosen, native = discrete_axes(len(spreads), 1, 1, 1, 1)
    chosen = replace(chosen, t=axis)
    native = native.replace(z=Fixed(steps, RK4()))
    weights = ByBasis(chosen, smooth_bases(chosen, native, 1)).autonomous()
    embed = Latent(Channels(spreads), weights, rule, tuple(max(1, n) for n in shown))
    held = len(spreads) - out
    slope: Operator = SymbolProducts(weights, waves, products, held)
    if conserving:
        slope = SymbolTransport(weights, waves, held)
    block = Parts((slope, *beside))
    return Transformer(chosen, native, embed, block, ChannelReadout(axis, rule, spreads[:out]))
