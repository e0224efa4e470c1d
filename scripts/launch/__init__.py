"""The launchers: a job's processes, here or on several hosts."""

import trainer  # noqa: F401  (the import of `server` here needs it)
