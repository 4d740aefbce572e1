"""Every test: one thread unless it is told (the tensors are tiny), and no window for figures."""

import os

import matplotlib
import pytest
import second_device
import torch


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="where test_device.py works: cuda, second")
    parser.addoption("--default-device", default="cpu", help="where all tests make tensors: second")


def pytest_configure(config):
    """Before test modules are imported, helpers too, for they have tensors."""
    if second_device.NAME in (config.getoption("device"), config.getoption("default_device")):
        second_device.register()
    if config.getoption("default_device") != "cpu":  # a mode, which compiled code would meet
        torch.set_default_device(config.getoption("default_device"))


def pytest_collection_modifyitems(items):
    """Skip examples of exports, and their tests, where their engine is not to be had."""
    from helpers import can_export

    for item in items:
        if item.path.parent.name == "export":
            item.add_marker(
                can_export(item.path.stem.removeprefix("test_").removesuffix("_export"))
            )


@pytest.fixture(scope="session")
def device(request):
    """Where models and data lie that a test moves there."""
    name = request.config.getoption("--device")
    try:
        return torch.zeros(1, device=name).device
    except (AssertionError, RuntimeError) as error:  # which one depends on how PyTorch was built
        pytest.skip(f"--device {name}: {str(error).splitlines()[0]}")


@pytest.fixture(autouse=True, scope="session")
def _quick_and_windowless():
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    matplotlib.use("Agg")


@pytest.fixture(scope="session")
def trained(_quick_and_windowless):
    """A trainer whose model has learned its few pairs by heart. Tests only read it."""
    from helpers import copying_trainer

    wider = {"d_model": 24, "d_ff": 40}
    settings = {"batch_size": 10, "warmup_steps": 10, "peak_learning_rate": 1e-2}
    trainer = copying_trainer(120, dropout=0.0, model_changes=wider, **settings)
    trainer.fit(progress=False)
    return trainer
