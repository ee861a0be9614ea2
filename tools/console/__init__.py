"""What commands share: their arguments, what they print, and how they end."""
