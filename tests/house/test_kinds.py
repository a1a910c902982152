"""Kinds of configurations: complete without imports, and what earlier versions called otherwise."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

import continua
from continua import config
from continua.errors import ConfigError
from tests.refusals import refused


@pytest.mark.spec("M10")
def test_the_table_lists_exactly_what_is_registered() -> None:
    """Every module is imported; classes that tests register are not of the house."""
    for module in pkgutil.walk_packages(continua.__path__, "continua."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    made = {kind: cls.__module__ for kind, cls in config._classes.items() if cls.__module__.startswith("continua.")}
    assert made == config.KINDS


@pytest.mark.spec("M10")
def test_every_alias_leads_to_a_kind_and_hides_none() -> None:
    assert set(config.ALIASES.values()) <= set(config.KINDS)
    assert not set(config.ALIASES) & set(config.KINDS)


@pytest.mark.spec("M10")
def test_a_kind_is_found_before_its_module_was_imported() -> None:
    """In a fresh process, since this one has imported everything: the first of every room."""
    firsts = {module.split(".")[1]: kind for kind, module in reversed(config.KINDS.items())}
    script = (
        f"from continua import config\nfor kind in {list(firsts.values())}: print(config.class_of(kind).__module__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [config.KINDS[kind] for kind in firsts.values()]


@pytest.mark.spec("M10")
def test_an_unknown_kind_names_the_nearest_even_if_nothing_is_imported() -> None:
    with refused(ConfigError, "'Latnt'", "Latent"):
        config.build("Latnt", {})
