"""What tests share: builders of data, stand-ins for processes, real daemons, and what drives them."""
