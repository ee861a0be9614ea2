"""What plans take, without compiling them."""
