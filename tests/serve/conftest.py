"""Small models, and a server with all of them."""

import pytest

from served import running_server, train_models


@pytest.fixture(scope="session")
def served_models(tmp_path_factory):
    return train_models(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def live(served_models):
    """Everybody may ask; all three kinds of models."""
    with running_server(served_models.values(), names=("a-b", "lm", "masked")) as running:
        yield running
