"""Files: `reading` what others wrote, `writing` so that a file is whole or not there."""
