"""Actions of verbs that have options of their own."""
