"""Shapes of Qwen3 models, in the words of its configuration; reading them takes no library."""

SHAPES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 2048, "tie_word_embeddings": True},
    "small": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 8}
    | {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 4096}
    | {"tie_word_embeddings": True},
    "0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28}
    | {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936}
    | {"tie_word_embeddings": True},
    "1.7b": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28}
    | {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936}
    | {"tie_word_embeddings": True},
    "4b": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936}
    | {"tie_word_embeddings": True},
    "8b": {"hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936}
    | {"tie_word_embeddings": False},
}
