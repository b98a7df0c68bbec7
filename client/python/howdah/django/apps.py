"""The Django app, which adds the command ``howdah_worker``."""

from django.apps import AppConfig


class HowdahConfig(AppConfig):
    name = "howdah.django"
    label = "howdah"
    verbose_name = "Howdah"
