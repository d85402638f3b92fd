"""Linear maps, adapters and quantized matmuls."""
