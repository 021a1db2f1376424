"""The daemon's settings: declared once, read from defaults, a TOML file, the environment and flags, all checked before anything loads."""

from stretto.settings.declare import SettingField
from stretto.settings.load import LoadedSettings, default_config_path, load_settings
from stretto.settings.places import default_models_dir, default_socket, default_state_dir
from stretto.settings.rules import Origin, is_loopback
from stretto.settings.table import SETTING_FIELDS, Settings

__all__ = [
    "SETTING_FIELDS",
    "LoadedSettings",
    "Origin",
    "SettingField",
    "Settings",
    "default_config_path",
    "default_models_dir",
    "default_socket",
    "default_state_dir",
    "is_loopback",
    "load_settings",
]
