"""``python tests/fuzz``: see docs/fuzzing.md."""

from __future__ import annotations

import sys

from _fuzz_command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
