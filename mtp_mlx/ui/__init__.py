"""The page: Gradio blocks over the engine."""
