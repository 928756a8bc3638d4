"""The same taskset with a tool, which verifiers serves over MCP."""

import verifiers.v1 as vf
from r3l_products import Product, ProductData


class Calculator(vf.Toolset[vf.ToolsetConfig, vf.State]):
    TOOL_PREFIX = None

    @vf.tool
    def multiply(self, a: int, b: int) -> str:
        """Multiplies a and b."""
        return str(a * b)


class ToolProduct(Product):
    @classmethod
    def toolsets(cls, config):
        return [Calculator(vf.ToolsetConfig())]


class ToolProducts(vf.Taskset[ToolProduct, vf.TasksetConfig]):
    def load(self):
        yield ToolProduct(ProductData(prompt="What is 12 times 13?", answer="156"))


__all__ = ["ToolProducts"]

if __name__ == "__main__":
    Calculator.run()
