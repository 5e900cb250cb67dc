"""From the words a person typed to a checked plan: arguments, configuration, this machine."""
