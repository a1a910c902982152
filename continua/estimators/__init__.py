"""Estimators in the manner of scikit-learn, for irregular series."""

from continua.estimators.classifier import ContinuaClassifier
from continua.estimators.forecaster import ContinuaForecaster
from continua.estimators.settings import SeriesSettings

__all__ = ["ContinuaClassifier", "ContinuaForecaster", "SeriesSettings"]
