"""A store that is moved or deleted while it is served ends its service, which says so once."""

import pytest

pytestmark = pytest.mark.system
