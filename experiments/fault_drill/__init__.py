"""Real jobs whose processes die, whose links are cut or whose disk is full."""
