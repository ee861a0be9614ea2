"""Parts that the frontends share: constants, losses, patterns, the finished import."""
