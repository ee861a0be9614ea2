"""The exact search, for problems whose graphs have a small tree width: answers with a proof."""
