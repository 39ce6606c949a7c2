"""Python imports this module at the start of every process whose tests shrink sizes everywhere."""

import json
import os

from tests.helpers.small import EVERYWHERE, set_sizes

set_sizes(json.loads(os.environ[EVERYWHERE]))
