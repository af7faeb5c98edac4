"""Puts this folder on the path of its tests, which share `publish_scene`, also with the processes that they kill."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
