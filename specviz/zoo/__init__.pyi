from .pairs import NAMED, choose_device, hub_problem, load_model, load_pair

__all__ = ["NAMED", "choose_device", "hub_problem", "load_model", "load_pair"]
