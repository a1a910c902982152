"""What checks annotations at run time in ``make test-shapes``: an int is a float, as the typing rules have it."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
