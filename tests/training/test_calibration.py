"""Temperature scaling: overconfidence is measured and corrected, and too few pixels change nothing."""

import numpy as np
import pytest

from hyperscene.training.fit.calibration import fit_temperature, negative_log_likelihood


def drawn(temperature: float, pixels: int = 4000):
    """Logits and classes that are calibrated after division by `temperature`."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(pixels, 5)) * 3
    powers = np.exp(logits / temperature)
    shares = powers / powers.sum(axis=1, keepdims=True)
    truth = (generator.random((pixels, 1)) > shares.cumsum(axis=1)).sum(axis=1)
    return logits.astype(np.float32), truth


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_true_temperature_is_found(temperature):
    logits, truth = drawn(temperature)
    found = fit_temperature(logits, truth)
    assert found == pytest.approx(temperature, rel=0.1)
    assert negative_log_likelihood(logits, truth, found) <= negative_log_likelihood(logits, truth, 1.0)


def test_too_few_pixels_change_nothing():
    logits, truth = drawn(3.0, pixels=49)
    assert fit_temperature(logits, truth) == 1.0
    assert fit_temperature(np.empty((0, 5), np.float32), np.empty(0, int)) == 1.0


def test_the_temperature_of_an_errorless_network_is_bounded():
    logits, _ = drawn(1.0, pixels=60)
    truth = logits.argmax(axis=1)
    assert fit_temperature(logits, truth) == pytest.approx(0.3, rel=1e-3)
