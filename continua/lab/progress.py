"""How long computations of the lab tell how far they are: functions that a caller may pass as ``watch``."""

from collections.abc import Callable

ReportShare = Callable[[float], None]  # is told which share of the way is done, from 0 to 1
ReportCount = Callable[[int, int], None]  # is told how many steps are done, and of how many
