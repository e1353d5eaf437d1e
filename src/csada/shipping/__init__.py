"""A finished model on its way into use: as one ONNX file that decides by itself, and as predictions on new inputs."""
