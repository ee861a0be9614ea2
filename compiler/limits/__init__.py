"""Plans of other memory limits than the user's."""
