"""The compiler: options, search and passes put together, plans and what is told of them."""
