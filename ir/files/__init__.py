"""Files: `reading` those of others, `writing` one that is whole or not there, `folders` of them."""
